package client

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/leat-io/leat/gen/go/leat/coordinator/v1"
)

// maxDetail is the longest detail of a progress report, in bytes.
const maxDetail = 255

// progress is what the next ping tells: every partition in which something waits to
// be released, and of the others those that have changed since they were told on this
// stream.
func (s *memberStream) progress() []*coordinatorv1.MemberProgress {
	if s.m.cfg.Progress == nil {
		return nil
	}
	all := s.m.cfg.Progress()
	told := make(map[TopicPartition]MemberProgress, len(all))
	var out []*coordinatorv1.MemberProgress
	for _, p := range all {
		p.Detail = strings.ToValidUTF8(p.Detail[:min(len(p.Detail), maxDetail)], "")
		told[p.TopicPartition] = p
		if old, ok := s.told[p.TopicPartition]; ok && old == p && p.OldestUnprocessed == 0 {
			continue
		}
		m := &coordinatorv1.MemberProgress{
			TopicId: p.TopicID.Bytes(), Partition: p.Partition, DeliveredNext: p.DeliveredNext, ProcessedNext: p.ProcessedNext,
			WaitingFor: p.Waiting, Detail: p.Detail,
		}
		if p.OldestUnprocessed > 0 {
			m.OldestUnprocessedAge = durationpb.New(p.OldestUnprocessed)
		}
		out = append(out, m)
	}
	s.told = told
	return out
}
