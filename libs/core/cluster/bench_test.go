package cluster

import (
	"fmt"
	"testing"
)

// full is a mesh of three brokers with partitions of three replicas, all led.
func full(tb testing.TB, topics, partitions int32) *world {
	w := newWorld(tb, 1, 2, 3)
	for i := range topics {
		plan, _, err := createTopics(w.State, testLimits(), []NewTopic{{Name: fmt.Sprint("t", i), Partitions: partitions, ReplicationFactor: 3, ID: w.newID(), Shift: int(i)}})
		w.apply(tb, plan, err)
	}
	w.makeFolders(tb)
	return w
}

var shapes = []struct{ topics, partitions int32 }{{5000, 1}, {1, 5000}}

// With nothing to do, Reconcile costs next to nothing however much there is.
func BenchmarkReconcileInOrder(b *testing.B) {
	for _, shape := range shapes {
		b.Run(fmt.Sprintf("topics=%d/partitions=%d", shape.topics, shape.partitions), func(b *testing.B) {
			w := full(b, shape.topics, shape.partitions)
			b.ReportAllocs()
			for b.Loop() {
				if plan, err := Reconcile(w.State, Hints{}); err != nil || !plan.IsEmpty() {
					b.Fatal(plan.Len(), err)
				}
			}
		})
	}
}

// After one ISR change it looks at one partition.
func BenchmarkReconcileAfterOneChange(b *testing.B) {
	w := full(b, 1, 5000)
	e := w.Partitions(w.TopicByName("t0").Value.ID)[7]
	b.ReportAllocs()
	for b.Loop() {
		w.Set(e.Value, e.Create, e.Mod)
		if plan, err := Reconcile(w.State, Hints{}); err != nil || !plan.IsEmpty() {
			b.Fatal(plan.Len(), err)
		}
	}
}

// A broker's death moves a third of the leaderships and shrinks all sets: what the
// controller thinks until the first leaders are planned, and until all is.
func BenchmarkBrokerDies(b *testing.B) {
	for _, shape := range shapes {
		name := fmt.Sprintf("topics=%d/partitions=%d", shape.topics, shape.partitions)
		w := full(b, shape.topics, shape.partitions)
		alive, dead := w.Broker(1).Value, w.Broker(1).Value
		dead.Fenced = true
		fence := func(b *testing.B) {
			if plan, err := FenceBroker(w.State, alive.Process); err != nil || plan.Len() != 1 {
				b.Fatal(plan.Len(), err)
			}
			w.Set(dead, 1, 2)
		}
		b.Run(name+"/leaders", func(b *testing.B) {
			for b.Loop() {
				fence(b)
				if plan, err := Reconcile(w.State, Hints{}); err != nil || plan.Len() != reconcileWrites || len(plan.Stages[0]) < 1600 {
					b.Fatal(plan.Len(), err)
				}
				w.Set(alive, 1, 2)
			}
		})
		b.Run(name+"/all", func(b *testing.B) {
			writes := 0
			for b.Loop() {
				b.StopTimer()
				w := full(b, shape.topics, shape.partitions)
				b.StartTimer()
				plan, err := FenceBroker(w.State, w.Broker(1).Value.Process)
				for err == nil && !plan.IsEmpty() {
					writes += plan.Len()
					w.apply(b, plan, nil)
					plan, err = Reconcile(w.State, Hints{})
				}
			}
			b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
		})
	}
}
