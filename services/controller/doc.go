// Package controller is the partition controller: it keeps the metadata of the
// mesh in etcd, elects leaders, assigns shards, and tells everybody else by a
// stream. Several controllers run; one of them leads.
//
// The caller's duties, in order: fill a [Config] from [DefaultConfig], check it
// with Validate, make a [Controller] with [New], Run it once, and wait for Ready
// before relying on it. Run returns when its context ends. etcd and every other
// process may come later than the controller.
package controller
