package simulation

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/core/cluster"
	"github.com/leat-io/leat/libs/core/partition"
	"github.com/leat-io/leat/libs/topicid"
)

// maxLives bounds the topics of a walk, all lives of all names together.
const maxLives = 6

// deletion is how far a deletion on record has come on a broker.
type deletion struct {
	pending bool // the broker is to confirm it
	gone    bool // nothing of the topic is on the disk any more
	told    bool // confirmed
}

// deleteTopic has the controller delete a topic.
func (w *world) deleteTopic() {
	t := w.anyTopic()
	if t == nil || !w.conf.Delete {
		return
	}
	w.admin("delete topic", func(s *cluster.State, _ int) (cluster.Plan, error) {
		plan, _, err := cluster.DeleteTopics(s, []string{t.name})
		return plan, err
	})
}

// makeAgain has the controller make a topic under a name that had one.
func (w *world) makeAgain() {
	if !w.conf.Delete {
		return
	}
	last := map[string]*topic{}
	var names []string
	for _, t := range w.topics {
		if last[t.name] == nil {
			names = append(names, t.name)
		}
		last[t.name] = t
	}
	t := last[names[w.n(len(names))]]
	switch {
	case t.internal || !t.parts[0].gone:
		return
	case t.born:
		if len(w.topics) >= maxLives {
			return
		}
		t = &topic{name: t.name, rf: int32(1 + w.n(3)), os: t.os, unclean: t.unclean, clean: w.cleaningFor()}
		w.addTopic(t, 1+w.n(2))
		for _, p := range t.parts {
			p.gone = true // until etcd has it
		}
	}
	w.createTopic(t, nil)
}

// noteTopic takes note of what a write to a topic's record means for its partitions.
func (w *world) noteTopic(rec cluster.Topic) {
	i := slices.IndexFunc(w.topics, func(t *topic) bool { return t.id == topicid.ID(rec.ID) })
	t := w.topics[i]
	switch {
	case rec.Deleting && !t.parts[0].gone:
		w.count("topic deleted")
		for _, p := range t.parts {
			p.gone = true
			w.floors[t.name] = max(w.floors[t.name], p.epochs)
		}
		w.writers = slices.DeleteFunc(w.writers, func(wr *writer) bool { return wr.p.gone && wr.p.topic == t })
		w.readers = slices.DeleteFunc(w.readers, func(rd *reader) bool { return rd.p.gone && rd.p.topic == t })
	case !rec.Deleting && !t.born:
		t.born = true
		if t.parts[0].gone {
			w.count("topic made again")
		}
		for _, p := range t.parts {
			p.gone = false
		}
	}
}

// goes reports whether a topic is on its way out by a broker's image.
func (b *broker) goes(id topicid.ID) bool {
	c, ok := b.of.at(cluster.Key{Type: cluster.KeyTopic, Topic: id}, b.rev)
	_, deleted := b.of.at(cluster.Key{Type: cluster.KeyDeletion, Topic: id}, b.rev)
	return deleted || ok && c.rec.(cluster.Topic).Deleting
}

// applyDeletions stops serving what is deleted, and takes the deletions on the books.
func (b *broker) applyDeletions() {
	for _, t := range b.w.topics {
		c, ok := b.of.at(cluster.Key{Type: cluster.KeyDeletion, Topic: t.id}, b.rev)
		d := b.deletions[t.id]
		switch {
		case ok && d == nil:
			b.deletions[t.id] = &deletion{pending: slices.Contains(c.rec.(cluster.Deletion).Pending, b.id)}
		case !ok && d != nil && d.gone:
			delete(b.deletions, t.id)
		}
	}
	for _, r := range b.replicas {
		if r.core != nil && b.goes(r.id.Topic) && r.core.Down() != partition.ReasonTopicDeleted {
			r.step(partition.Deleted{})
		}
	}
}

// setAside moves a folder away of which the metadata knows nothing.
func (b *broker) setAside(r *replica) {
	w := b.w
	w.count("unknown folder set aside")
	w.say("broker %d#%d sets its replica of %s aside", b.id, b.inc, w.name(r.id))
	r.retire()
	b.remove(r.id)
	if r.log != nil {
		_ = r.log.Abort()
	}
	to := path.Join("/unknown", folderName(r.id))
	d := b.disk
	err := errors.Join(d.fs.RemoveAll(to), d.fs.Rename(w.folder(r.id), to), d.fs.SyncDir("/unknown"), d.fs.SyncDir("/d"))
	if err != nil && !errors.Is(err, errPower) {
		w.say("  it cannot: %v", err)
	}
}

// deletionStep has a broker carry out, or confirm, a deletion.
func (w *world) deletionStep() {
	b := w.find(func(b *broker) bool { return b.runs() && b.adopted && !b.regressed && len(b.deletions) > 0 })
	if b == nil {
		return
	}
	at := w.n(len(w.topics))
	for i := range w.topics {
		t := w.topics[(at+i)%len(w.topics)]
		switch d := b.deletions[t.id]; {
		case d == nil:
		case !d.gone && !b.diskBad && !b.diskHung:
			b.deleteTopic(t, d)
			return
		case d.gone && d.pending && !d.told:
			b.confirm(t, d)
			return
		}
	}
}

// deleteTopic removes everything of a topic from the disk.
func (b *broker) deleteTopic(t *topic, d *deletion) {
	w, disk := b.w, b.disk
	for _, p := range t.parts {
		if r := b.get(p.id); r != nil {
			r.retire()
			err := error(nil)
			if r.log != nil {
				err = r.log.Delete()
			}
			if r.log == nil || errors.Is(err, commitlog.ErrClosed) {
				err = commitlog.DeleteFolder(disk.fs, w.folder(p.id), commitlog.Metadata{Topic: "t", Partition: p.id.Number, TopicID: p.id.Topic})
			}
			if err != nil {
				w.say("broker %d#%d cannot delete its replica of %s: %v", b.id, b.inc, w.name(p.id), err)
				if errors.Is(err, errDisk) {
					b.diskFailed()
				}
				return
			}
			w.count("replica deleted with its topic")
			w.say("broker %d#%d deletes its replica of %s", b.id, b.inc, w.name(p.id))
			b.remove(p.id)
		}
		if err := errors.Join(disk.fs.RemoveAll(path.Join("/unknown", folderName(p.id))), disk.fs.SyncDir("/unknown")); err != nil {
			return
		}
		b.forget(p.id)
		delete(b.bad, p.id)
	}
	d.gone = true
	b.apply() // one of the same name may be waiting for the folder's
}

// confirm tells a controller that nothing of a topic is here any more.
func (b *broker) confirm(t *topic, d *deletion) {
	if b.vouchAt > b.w.now {
		return
	}
	b.vouchAt = b.w.now + callTimeout/4
	life := b.life()
	b.w.ask(b, "confirmation", func(c *controller, answer func(func())) {
		c.do(&command{name: "confirm deletion", plan: func(s *cluster.State, _ int) (cluster.Plan, error) {
			return cluster.ConfirmDeletion(s, life, [][16]byte{t.id})
		}, done: func(_ int64, err error) {
			if err == nil {
				answer(func() { d.told = true; b.w.count("deletion confirmed") })
			}
		}})
	}, func() {})
}

// deleted reports what is left of deleted topics, "" for nothing.
func (w *world) leftovers() string {
	if len(w.floors) == 0 {
		return ""
	}
	for key, h := range w.etcd.keys {
		if h[len(h)-1].rec == nil {
			continue
		}
		switch key.Type {
		case cluster.KeyDeletion:
			return "a deletion is on record"
		case cluster.KeyTopic:
			if h[len(h)-1].rec.(cluster.Topic).Deleting {
				return "a topic is being deleted"
			}
		case cluster.KeyPartition:
			if p := w.part(cluster.PartitionID{Topic: key.Topic, Number: key.ID}); p.gone {
				return fmt.Sprintf("the record of %s is there", w.name(p.id))
			}
		}
	}
	for _, b := range w.bs[1:] {
		entries, _ := b.disk.mem.ReadDir("/d")
		for _, e := range entries {
			m, err := commitlog.ReadMetadata(b.disk.mem, path.Join("/d", e.Name))
			if err == nil && !strings.HasSuffix(e.Name, commitlog.DeletedSuffix) && w.part(cluster.PartitionID{Topic: m.TopicID, Number: m.Partition}).gone {
				return fmt.Sprintf("broker %d has the folder %s", b.id, e.Name)
			}
		}
	}
	return ""
}
