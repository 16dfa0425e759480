package replica

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"
	"github.com/leat-io/leat/services/broker/internal/store"
)

// Metrics are the broker's metrics. Their names are documented in
// docs/metrics.md and do not change.
type Metrics struct {
	appendBytes, appendRecords prometheus.Counter
	duplicates, damagedLogs    prometheus.Counter
	fetchBytes, fetchRecords   prometheus.Counter
	fsync                      prometheus.Histogram
	failures                   *prometheus.CounterVec
	replicas                   *prometheus.GaugeVec

	diskState, diskFree, diskTotal  *prometheus.GaugeVec
	openFiles                       prometheus.Gauge
	retainedBytes, retainedSegments prometheus.Counter
	cleanings, cleanedBytes         prometheus.Counter
	cleanedRecords                  prometheus.Counter
	upkeepFailures                  *prometheus.CounterVec

	underReplicated, replicaLagMax   prometheus.Gauge
	isrShrinks, isrExpands           prometheus.Counter
	replicatedIn, replicatedOut      prometheus.Counter
	copyFailures, uncleanTruncations prometheus.Counter
}

// NewMetrics makes the metrics and registers them; reg may be nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "leat", Subsystem: "broker", Name: name, Help: help})
	}
	perDisk := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "leat", Subsystem: "broker", Name: name, Help: help}, []string{"dir"})
	}
	m := &Metrics{
		underReplicated:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "leat", Subsystem: "broker", Name: "under_replicated_partitions", Help: "Partitions led here with fewer replicas in sync than they have."}),
		replicaLagMax:      prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "leat", Subsystem: "broker", Name: "replica_lag_records_max", Help: "Most offsets that a replica here is behind the high watermark of its leader."}),
		isrShrinks:         counter("isr_shrinks_total", "In-sync sets led here that lost a member."),
		isrExpands:         counter("isr_expands_total", "In-sync sets led here that gained a member."),
		replicatedIn:       counter("replication_in_bytes_total", "Bytes of record batches received from leaders."),
		replicatedOut:      counter("replication_out_bytes_total", "Bytes of record batches sent to followers."),
		copyFailures:       counter("replication_refused_total", "Runs of batches from a leader of which the log refused a part."),
		uncleanTruncations: counter("unclean_truncations_total", "Truncations below the high watermark, after unclean elections."),
		diskState:          perDisk("disk_state", "State of a folder of log.dirs: 0 roomy, 1 low, 2 throttled, 3 full, 4 offline."),
		diskFree:           perDisk("disk_free_bytes", "Bytes that may still be written to a folder of log.dirs."),
		diskTotal:          perDisk("disk_total_bytes", "Bytes of the disk of a folder of log.dirs."),
		openFiles:          prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "leat", Subsystem: "broker", Name: "open_log_files", Help: "Files that the logs have open."}),
		retainedBytes:      counter("retention_bytes_total", "Bytes that retention took out of logs."),
		retainedSegments:   counter("retention_segments_total", "Segments that retention took out of logs."),
		cleanings:          counter("cleanings_total", "Cleanings of compacted logs that ended well."),
		cleanedBytes:       counter("cleaner_read_bytes_total", "Bytes that the cleaner read from compacted logs."),
		cleanedRecords:     counter("cleaner_removed_records_total", "Records that compaction removed."),
		upkeepFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "leat", Subsystem: "broker", Name: "upkeep_failures_total", Help: "Attempts of retention or cleaning that failed on a log.",
		}, []string{"what"}),
		appendBytes:   counter("append_bytes_total", "Bytes of record batches appended to logs that this broker leads."),
		appendRecords: counter("append_records_total", "Records appended to logs that this broker leads."),
		damagedLogs:   counter("damaged_logs_total", "Logs that were found damaged while they were read."),
		duplicates:    counter("duplicate_batches_total", "Batches of idempotent producers that were sent again and not appended again."),
		fetchBytes:    counter("fetch_bytes_total", "Bytes of record batches sent to readers."),
		fetchRecords:  counter("fetch_records_total", "Offsets covered by the record batches sent to readers."),
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "leat", Subsystem: "broker", Name: "fsync_seconds", Help: "Time of one sync of a log; it serves all batches appended before it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "leat", Subsystem: "broker", Name: "produce_failures_total", Help: "Batches that were not acknowledged, by reason; those sent with acks=0 are told nowhere else.",
		}, []string{"reason"}),
		replicas: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "leat", Subsystem: "broker", Name: "replicas", Help: "Replicas on this broker by state: leading, idle or offline.",
		}, []string{"state"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.appendBytes, m.appendRecords, m.duplicates, m.damagedLogs, m.fetchBytes, m.fetchRecords, m.fsync, m.failures, m.replicas,
		m.diskState, m.diskFree, m.diskTotal, m.openFiles, m.retainedBytes, m.retainedSegments, m.cleanings, m.cleanedBytes, m.cleanedRecords, m.upkeepFailures,
		m.underReplicated, m.replicaLagMax, m.isrShrinks, m.isrExpands, m.replicatedIn, m.replicatedOut, m.copyFailures, m.uncleanTruncations,
	} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// Failure counts a batch that was not acknowledged.
func (m *Metrics) Failure(reason typev1.ErrorReason) {
	m.failures.WithLabelValues(rpc.ReasonName(reason)).Inc()
}

// stateOffline follows the stages of a disk.
const stateOffline = int(store.Full) + 1

// disks notes how the disks are.
func (m *Metrics) disks(s *store.Store) {
	for _, d := range s.Disks() {
		state := int(d.Stage())
		if d.Err() != nil {
			state = stateOffline
		}
		m.diskState.WithLabelValues(d.Dir).Set(float64(state))
		if free, total, ok := d.Free(); ok {
			m.diskFree.WithLabelValues(d.Dir).Set(float64(free))
			m.diskTotal.WithLabelValues(d.Dir).Set(float64(total))
		}
	}
	m.openFiles.Set(float64(s.OpenFiles()))
}

// Fetched counts what was sent to a reader.
func (m *Metrics) Fetched(bytes int, records int64) {
	m.fetchBytes.Add(float64(bytes))
	m.fetchRecords.Add(float64(records))
}

// CountFailure counts a batch that was refused before it reached a replica.
func (m *Manager) CountFailure(reason typev1.ErrorReason) { m.cfg.Metrics.Failure(reason) }

// ReplicatedOut counts what was sent to a follower.
func (m *Metrics) ReplicatedOut(bytes int) { m.replicatedOut.Add(float64(bytes)) }

// ReplicatedIn counts what came from a leader.
func (m *Metrics) ReplicatedIn(bytes int) { m.replicatedIn.Add(float64(bytes)) }
