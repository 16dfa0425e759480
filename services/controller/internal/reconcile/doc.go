// Package reconcile is the leading controller's loop: it takes commands one
// after the other, those that say so many at a time, writes what the core plans, and
// lets the core finish what follows from the state itself and from the passing of
// time: first leaders, unclean elections, reassignments, preferred leaders.
//
// The caller's duties, in order: make a [Loop]; hand its Lead to the election;
// put commands with Do from any goroutine, at any time. While this controller
// does not lead, Do says who does.
package reconcile
