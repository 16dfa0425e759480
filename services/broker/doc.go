// Package broker is the log storage node: it keeps replicas of partitions on
// local disks and serves produce, fetch and offset requests for those it leads.
//
// The caller's duties, in order: take DefaultConfig and change it; make a Broker
// with New, which checks the config and listens; Run it once, until its context
// ends; wait for Ready before sending it clients.
//
// A broker starts in this order, and stops in the reverse one: serve (identity
// and health answer at once, everything else STARTING); lock and recover the
// disks; hold the registration key; follow the metadata until it shows that key;
// open and create replicas; vouch for them at the elected controller until the
// metadata shows the broker unfenced. Before it stops it asks for leave, so that
// others lead what it led. Controllers and etcd may be away at any
// time: it waits for them at the start, and later serves on in the epochs it
// knows. When etcd turns out to have gone back in time it serves nothing until the
// mesh has been restored.
package broker
