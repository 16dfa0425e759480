//go:build race

package commitlog

// raceScale makes the largest tests smaller under the race detector.
const raceScale = 10
