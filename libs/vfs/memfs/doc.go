// Package memfs is a file system in memory that can lose power.
//
// It tells apart what was written from what was made durable: a file's bytes by
// File.Sync, a name by SyncDir of its directory. Crash forgets the rest, or, with
// a chooser, keeps parts of it as a real disk may.
//
// The caller's duties, in order: New; hand it to the code under test; Crash, after
// which every open file and lock is dead; look at what is left through the same FS.
package memfs
