package partition

// epochs is the core's copy of the log's epoch cache: where the batches of each
// leader epoch begin, both columns rising.
type epochs []EpochStart

// last is the newest epoch, -1 without any.
func (c epochs) last() int32 {
	if len(c) == 0 {
		return -1
	}
	return c[len(c)-1].Epoch
}

// assign takes note of a batch of an epoch at an offset.
func (c epochs) assign(epoch int32, start int64) epochs {
	if epoch <= c.last() {
		return c
	}
	return append(c, EpochStart{Epoch: epoch, Start: start})
}

// from is the cache of a log that begins at an offset.
func (c epochs) from(start int64) epochs {
	first := 0
	for first+1 < len(c) && c[first+1].Start <= start {
		first++
	}
	n := copy(c, c[first:])
	return c[:n]
}

// endOf finds the largest epoch that is not above epoch, and its end; -1, -1 where
// the log has none.
func (c epochs) endOf(epoch int32, logEnd int64) (int32, int64) {
	end := logEnd
	for i := len(c) - 1; i >= 0; i-- {
		if c[i].Epoch <= epoch {
			return c[i].Epoch, end
		}
		end = c[i].Start
	}
	return -1, -1
}
