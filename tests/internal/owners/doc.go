// Package owners judges what the members of a group were told and given: whether a
// partition had two owners at once, whether the group skipped records, and for how
// long it was given none.
//
// The caller's duties, in order: New; then, in the order in which it happened,
// Assign and Revoke for what members were told, Deliver for what they were given,
// and Pass for what came from a member whose assignments nobody sees; Ends and the
// counts at any time. It is safe for concurrent use, but members of other processes
// are best recorded by them with their times, and told here in the order of these.
package owners
