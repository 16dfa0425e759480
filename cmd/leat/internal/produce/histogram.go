package produce

import (
	"math/bits"
	"time"
)

// subBuckets divides each power of two; the error of a percentile is below
// 1/subBuckets of its value.
const subBuckets = 32

// histogram counts durations in logarithmic buckets: its memory does not grow.
type histogram struct {
	counts [64 * subBuckets]int64
	total  int64
}

func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < subBuckets {
		return int(us)
	}
	exp := bits.Len64(us) - bits.Len64(subBuckets)
	return exp*subBuckets + int(us>>exp)
}

func lowerBound(bucket int) time.Duration {
	if bucket < 2*subBuckets {
		return time.Duration(bucket) * time.Microsecond
	}
	exp := bucket/subBuckets - 1
	return time.Duration(uint64(bucket%subBuckets+subBuckets)<<exp) * time.Microsecond
}

func (h *histogram) add(d time.Duration, n int64) {
	h.counts[bucketOf(d)] += n
	h.total += n
}

// percentile is the time that a share of the counts, from 0 to 1, do not exceed
// by more than a bucket; 0 without counts.
func (h *histogram) percentile(share float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := int64(share * float64(h.total-1))
	for i, n := range h.counts {
		if rank < n {
			return lowerBound(i)
		}
		rank -= n
	}
	return 0
}
