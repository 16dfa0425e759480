// Package storage measures the storage engine (libs/commitlog) beside bare system
// calls. Each benchmark runs both sides in turn, a round of one and a round of the
// other on the same files, which were written before and are in the page cache; so
// that what the machine does besides hits both. The figure that counts is "ratio",
// the median over the rounds.
//
//	go test -run '^$' -bench . ./storage
//	go test -run '^$' -bench Clean ./storage -full    # 1 GB, 10 M keys
//	go test -run '^$' -bench . ./storage -dir /data    # on another file system
package storage
