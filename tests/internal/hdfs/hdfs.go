package hdfs

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Lines returns n lines, each with a block id out of about n/3, the same for
// the same seed. Every line is different from all others.
func Lines(n int, seed uint64) []string {
	rnd := rand.New(rand.NewPCG(seed, 0x1ea7))
	blocks := make([]int64, n/3+1)
	for i := range blocks {
		blocks[i] = rnd.Int64()
		if rnd.IntN(2) == 0 {
			blocks[i] = -blocks[i]
		}
	}
	lines := make([]string, n)
	for i := range lines {
		block := blocks[rnd.IntN(len(blocks))]
		head := fmt.Sprintf("0811%02d %02d%02d%02d %d INFO", 9+i%20, i/3600%24, i/60%60, i%60, i)
		switch rnd.IntN(3) {
		case 0:
			lines[i] = fmt.Sprintf("%s dfs.DataNode$PacketResponder: PacketResponder %d for block blk_%d terminating", head, rnd.IntN(3), block)
		case 1:
			lines[i] = fmt.Sprintf("%s dfs.FSNamesystem: BLOCK* NameSystem.addStoredBlock: blockMap updated: 10.251.%d.%d:50010 is added to blk_%d size %d",
				head, rnd.IntN(256), rnd.IntN(256), block, rnd.IntN(67108864))
		default:
			lines[i] = fmt.Sprintf("%s dfs.DataNode$DataXceiver: Receiving block blk_%d src: /10.250.%d.%d:%d dest: /10.250.1.1:50010",
				head, block, rnd.IntN(256), rnd.IntN(256), 1024+rnd.IntN(60000))
		}
	}
	return lines
}

// Text joins lines as a file holds them: each ends with LF.
func Text(lines []string) string {
	return strings.Join(lines, "\n") + "\n"
}
