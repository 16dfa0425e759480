package cluster

import (
	"fmt"
	"testing"
)

func BenchmarkReconcile(b *testing.B) {
	for _, shape := range []struct{ topics, partitions int32 }{{5000, 1}, {1, 10000}} {
		b.Run(fmt.Sprintf("topics=%d/partitions=%d", shape.topics, shape.partitions), func(b *testing.B) {
			w := newWorld(b, 1, 2, 3)
			for i := range shape.topics {
				plan, _, err := CreateTopics(w.State, testLimits(), []NewTopic{{Name: fmt.Sprint("t", i), Partitions: shape.partitions, ReplicationFactor: 1, ID: w.newID()}})
				w.apply(b, plan, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if plan, err := Reconcile(w.State, Hints{}); err != nil || !plan.IsEmpty() {
					b.Fatal(plan.Len(), err)
				}
			}
		})
	}
}
