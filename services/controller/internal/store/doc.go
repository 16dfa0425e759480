// Package store keeps a controller's picture of the metadata equal to etcd, and
// writes plans to etcd.
//
// The caller's duties, in order: make a [Store] and let it Run for as long as
// the controller lives, leading or not; read through View; subscribe to changes
// with Subscribe and Close each subscription. A leader commits plans with a
// [Writer], which takes the term it won, and reads nothing back before the store
// has reached the revision of what it wrote.
package store
