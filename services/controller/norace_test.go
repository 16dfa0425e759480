//go:build !race

package controller

// widePartitions is how many partitions a wide topic has.
const widePartitions = 5000
