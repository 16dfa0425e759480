//go:build !race

package commitlog

const raceScale = 1
