package replication

import "testing"

// What an image costs in which nothing is new, on a broker of 5,000 replicas.
func BenchmarkApply(b *testing.B) {
	m := newMesh(b, 3, meshOptions{})
	id := m.ctl.CreateReplicated("many", 5000, 2, nil, 1, 2, 3)
	m.awaitAgreed(id, 5000)
	n := m.nodes[1]
	b.ResetTimer()
	for b.Loop() {
		n.manager.Apply(n.watcher.Image())
	}
}
