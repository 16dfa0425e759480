package topicconfig

// maxKeyLength bounds the work of nearest on keys from outside.
const maxKeyLength = 64

// nearest finds the known key with the smallest edit distance, if that is small
// beside the key's length.
func nearest(key string) string {
	if len(key) > maxKeyLength {
		return ""
	}
	best, bestDistance := "", len(key)/3+2
	for _, d := range Definitions() {
		if n := distance(key, d.Key); n < bestDistance {
			best, bestDistance = d.Key, n
		}
	}
	return best
}

// distance is the number of single-byte edits between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			above := row[j]
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above+1, row[j-1]+1, diagonal+cost)
			diagonal = above
		}
	}
	return row[len(b)]
}
