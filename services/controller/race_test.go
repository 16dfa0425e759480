//go:build race

package controller

// widePartitions is how many partitions a wide topic has, with the race detector at work.
const widePartitions = 500
