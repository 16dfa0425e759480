// Command controller runs one partition controller as a process of its own. The
// caller's duties: give it the addresses of etcd, and stop it with SIGTERM.
package main
