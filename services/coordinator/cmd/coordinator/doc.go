// Command coordinator runs one group coordinator of a Leat mesh. The caller's duty:
// give it the addresses of etcd (--etcd.endpoints) and an id that no other
// coordinator has (--node.id); it finds everything else by itself, and waits for
// what is not there yet. --help lists the settings.
package main
