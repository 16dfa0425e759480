// Command broker runs one log storage node of a Leat mesh until SIGTERM.
//
// Its caller gives it a node.id that is the same at every start, the folders of
// its disks (log.dirs) and the addresses of etcd; `broker --help` lists the rest.
// SIGTERM stops it in order; after anything else the next start recovers.
package main
