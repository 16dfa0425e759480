//go:build race

package commitlog

// raceScale makes the largest tests smaller under the race detector.
const raceScale = 10

// crashStride is how many I/O steps lie between two cuts of the longest crash tests:
// under the race detector they look for races, and the others for every step.
const crashStride = 5
