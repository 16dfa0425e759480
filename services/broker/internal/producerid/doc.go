// Package producerid hands out producer ids from blocks that the controller
// allocates. One block is in use and a spare is held beside it, so that producers
// can start while etcd or every controller is away.
//
// The caller's duties, in order: make a Pool with New, Run it until the process
// ends, and ask Next for each id. Ids of a block that is not used up when the
// process ends are never handed out by anybody.
package producerid
