// Package metadata keeps a process's picture of the mesh: who is registered,
// which topics there are, who leads what. The picture comes from a controller's
// WatchMetadata stream and is never older than it was.
//
// The caller's duties, in order: make a [Watcher] and let it Run for as long as
// the process lives; before leading, following, acknowledging or deleting
// anything, wait with WaitForRevision until the picture has reached the process's
// own registration; then read Image as often as needed and act on each Changed;
// serve nothing while Regressed says that etcd has gone back in time.
// An [Image] and everything in it is immutable: read it, keep it, never write to
// it, the protobuf messages included.
//
// [NewServer] answers clients' metadata requests from the picture, and
// [Controllers] calls the elected controller.
package metadata
