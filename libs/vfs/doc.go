// Package vfs is the small file system that the storage libraries write
// through. The operating system is one implementation ([OS]); package memfs is
// another that forgets everything unsynced when it crashes, and package errorfs
// wraps either one with faults.
//
// The caller's duties, in order:
//
//  1. Make directories with MkdirAll and call SyncDir on the parent of each one
//     whose existence must survive a power cut.
//  2. Write a file, call Sync on it, and then SyncDir on its directory. Neither
//     call replaces the other: Sync makes the bytes durable, SyncDir the name.
//  3. To replace a file as a whole use [WriteFileAtomic], which does the above
//     around a rename.
//  4. Treat a failed Sync as final. The kernel may have dropped the dirty pages
//     and will answer the next call with success; retrying proves nothing.
//  5. Close every File and every lock. Closing does not sync.
//
// Paths are those of the operating system. Implementations are safe for use by
// several goroutines.
package vfs
