//go:build !race

package commitlog

const raceScale = 1

const crashStride = 1
