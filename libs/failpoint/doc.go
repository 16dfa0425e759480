// Package failpoint lets tests make a process fail at named places of its code: an
// error, a delay, the end of the process, or a standstill.
//
// The places are compiled in only with the build tag failpoints. Without it Hit is
// an empty function, which the compiler inlines away, nothing can be armed, and
// there is no state; a test of this package proves both.
//
// The duties, in order, of the code that has a place: name it among the constants of
// this package and add it to Names; call Hit there and treat its error as the error
// of the step that it stands for. Of a test: build with -tags failpoints; arm places
// by the environment variable LEAT_FAILPOINTS, which is read once at the start, or
// while the process runs by PUT /debug/failpoints of the operations HTTP, whose body
// has the same form; GET it for the counts.
//
// The form: name=action entries, separated by semicolons. The actions:
//
//	error            an error of its own kind
//	error(EIO)       as the system's; also ENOSPC
//	delay(200ms)     goes on after a time
//	pause            goes on when the place is disarmed
//	crash            kills the process, as kill -9 does
//	off              disarms
//
// followed, in any order, by *N (only the next N times), %P (each time with a
// probability of P percent) and +N (not the first N times). An example:
//
//	commitlog.fsync=error(EIO)*1;controller.txn.after=delay(300ms)%20
//
// "clock=skew(-2s)" is no place: it moves what Now tells, where a process takes the
// time from it.
package failpoint
