package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/leat-io/leat/tests/internal/hdfs"
	"github.com/leat-io/leat/tests/internal/mesh"
)

// TestMainJob is what Leat is for: logs go in by key, and come out once for a
// group, whole, and in order within each partition.
func TestMainJob(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	const partitions = 3
	lines := hdfs.Lines(2000, 1)

	m.MustLeat("topic", "create", "hdfs", "--partitions", fmt.Sprint(partitions))
	m.MustLeatInput(hdfs.Text(lines), "produce", "hdfs", "--key-regex", "blk_-?[0-9]+")

	got := m.MustLeat("consume", "hdfs", "--group", "g1", "--from-beginning", "--max-messages", "2000")
	if want, have := sorted(lines), sorted(splitLines(got)); !slices.Equal(want, have) {
		t.Errorf("consumed %d lines, want the %d produced", len(have), len(want))
	}
	if again := m.MustLeat("consume", "hdfs", "--group", "g1", "--from-beginning", "--follow=false"); again != "" {
		t.Errorf("the group has read it all, yet gets %d lines more", len(splitLines(again)))
	}
	checkPlacementAndOrder(t, m, lines, partitions)

	describe := m.MustLeat("group", "describe", "g1", "-o", "json")
	if !strings.Contains(describe, `"lag":0`) && !strings.Contains(describe, `"lag": 0`) {
		t.Errorf("group describe shows no lag of 0: %s", describe)
	}
}

// checkPlacementAndOrder reads everything without a group and checks that each
// key is where Kafka's clients would put it, and that partitions keep the
// order of the input.
func checkPlacementAndOrder(t *testing.T, m *mesh.Mesh, lines []string, partitions int) {
	t.Helper()
	position := map[string]int{}
	for i, line := range lines {
		position[line] = i
	}
	records := parseRecords(t, m.MustLeat("consume", "hdfs", "--from-beginning", "--follow=false", "-o", "json"))
	if len(records) != len(lines) {
		t.Errorf("read %d records, want %d", len(records), len(lines))
	}
	last := map[int]int{}
	nextOffset := map[int]int64{}
	for _, r := range records {
		key := blockID.FindString(r.text())
		if r.Key == nil || *r.Key != key {
			t.Fatalf("record %d/%d has key %v, want %s", r.Partition, r.Offset, r.Key, key)
		}
		if want := kafkaPartition(key, partitions); r.Partition != want {
			t.Errorf("key %s is in partition %d; Kafka's clients choose %d", key, r.Partition, want)
		}
		at, ok := position[r.text()]
		if !ok {
			t.Fatalf("record %d/%d was never produced: %q", r.Partition, r.Offset, r.text())
		}
		if before, ok := last[r.Partition]; ok && at < before {
			t.Errorf("partition %d: line %d comes after line %d", r.Partition, at, before)
		}
		last[r.Partition] = at
		if r.Offset != nextOffset[r.Partition] {
			t.Errorf("partition %d: offset %d follows %d", r.Partition, r.Offset, nextOffset[r.Partition]-1)
		}
		nextOffset[r.Partition] = r.Offset + 1
	}
}

// TestTwoConsumersShareAGroup: two members share the partitions, and one that
// stops hands its share over.
func TestTwoConsumersShareAGroup(t *testing.T) {
	m := mesh.Start(t, mesh.Options{})
	m.MustLeat("topic", "create", "shared", "--partitions", "4")

	first := startConsumer(t, m, "shared", "--group", "pair", "--from-beginning", "-o", "json")
	second := startConsumer(t, m, "shared", "--group", "pair", "--from-beginning", "-o", "json")
	waitForOwners(t, m, "pair", 2, 4)

	m.MustLeatInput(hdfs.Text(hdfs.Lines(400, 2)), "produce", "shared", "--partitioner", "round-robin")
	waitForRecords(t, 400, first, second)
	if a, b := len(first.records(t)), len(second.records(t)); a == 0 || b == 0 {
		t.Errorf("the members got %d and %d records; both should have a share", a, b)
	}
	if both := overlap(first.records(t), second.records(t)); len(both) > 0 {
		t.Errorf("%d records went to both members, %v among them", len(both), both[0])
	}

	if code := second.stop(t); code != 130 && code != 0 {
		t.Errorf("the stopped consumer exited with %d", code)
	}
	waitForOwners(t, m, "pair", 1, 4)
	m.MustLeatInput(hdfs.Text(hdfs.Lines(100, 3)), "produce", "shared", "--partitioner", "round-robin")
	waitForRecords(t, 500, first, second)
}

func overlap(a, b []record) []string {
	seen := map[string]bool{}
	for _, r := range a {
		seen[fmt.Sprint(r.Partition, "/", r.Offset)] = true
	}
	var both []string
	for _, r := range b {
		if at := fmt.Sprint(r.Partition, "/", r.Offset); seen[at] {
			both = append(both, at)
		}
	}
	return both
}

func sorted(lines []string) []string {
	s := slices.Clone(lines)
	slices.Sort(s)
	return s
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
