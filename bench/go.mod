module github.com/leat-io/leat/bench

go 1.26.0

require github.com/leat-io/leat/libs v0.0.0

require (
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace (
	github.com/leat-io/leat/gen => ../gen
	github.com/leat-io/leat/libs => ../libs
	github.com/leat-io/leat/services => ../services
)
