// Package dev runs a whole mesh on one machine: all services and an embedded
// etcd in this process, or a process each under a supervisor.
//
// Run is `leat dev`: it plans addresses and settings (plan.go), takes the data
// folder and its lock (folder.go), checks the ports, starts etcd, controllers,
// coordinators, brokers and gateways in the order in which they need each
// other, and stops them in the opposite one. Control is `leat dev
// restart|stop|start`, which asks the Run that holds the folder through a socket
// in it. RunEtcd is one etcd member as a process, which Run starts for itself.
//
// The supervisor never starts a service again by itself. On Linux its children
// die with it.
package dev
