package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/record"
	"github.com/leat-io/leat/libs/vfs"

	"github.com/leat-io/leat/cmd/leat/internal/consume"
	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

func newLogCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use: "log", Short: "Look into log files", Example: "  leat log dump D/broker-1/hdfs-0",
	}, newLogDump(a), newLogVerify(a))
}

func newLogDump(a *app) *cobra.Command {
	var records bool
	cmd := &cobra.Command{
		Use: "dump DIR", Short: "Print the record batches in the folder of a replica, or in all folders below DIR", Args: args("DIR"),
		Long: `Print every record batch of the segments in DIR, or, if DIR holds none, of
each folder below it, with its checksum verified. Nothing is changed; a running
broker does not mind. With --records, the records too. A damaged batch is
reported at its place and makes the exit code 1.

` + exitCodes,
		Example: `  leat log dump D/broker-1/hdfs-0
  leat log dump D/broker-1 --records -o json`,
		RunE: func(_ *cobra.Command, given []string) error {
			dirs, err := logFolders(given[0])
			if err != nil {
				return err
			}
			d := dumper{app: a, records: records, table: output.NewTable("FILE", ">POSITION", ">BASE", ">LAST", ">RECORDS", ">SIZE", ">EPOCH", "CODEC", "MAX TIMESTAMP", "NOTES")}
			for _, dir := range dirs {
				if err := commitlog.Scan(vfs.OS(), dir, d.batch); err != nil {
					return fmt.Errorf("read %s: %w", dir, err)
				}
			}
			if !a.json() && !records {
				if err := d.table.Write(a.Out); err != nil {
					return err
				}
			}
			if d.damaged > 0 {
				return exit.Failure("Keep a copy of the folder, then see docs/operations.md on damaged logs.", "%d damaged batches", d.damaged)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&records, "records", false, "print the records of each batch")
	return cmd
}

// logFolders is dir if it holds segments, else the folders below that do.
func logFolders(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() && strings.HasSuffix(path, ".log") && len(filepath.Base(path)) == len("00000000000000000000.log") {
			if folder := filepath.Dir(path); len(found) == 0 || found[len(found)-1] != folder {
				found = append(found, folder)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, exit.Failure("Give the folder of a replica, such as D/broker-1/hdfs-0.", "there is no folder %s", dir)
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, exit.Failure("Give the folder of a replica, such as D/broker-1/hdfs-0.", "%s holds no segment (a file such as 00000000000000000000.log)", dir)
	}
	return found, nil
}

type dumper struct {
	*app
	records bool
	table   *output.Table
	damaged int
	buf     []byte
}

func (d *dumper) batch(b commitlog.BatchInfo) error {
	h := b.Header
	line := output.Batch{
		File: b.Path, Position: b.Position, BaseOffset: h.BaseOffset, LastOffset: h.LastOffset(), Records: h.NumRecords, Size: int64(h.Size()),
		LeaderEpoch: h.PartitionLeaderEpoch, Compression: h.Compression().String(), BaseTimestamp: h.BaseTimestamp, MaxTimestamp: h.MaxTimestamp,
		ProducerID: h.ProducerID, ProducerEpoch: h.ProducerEpoch, BaseSequence: h.BaseSequence,
		Transactional: h.Attributes.Transactional(), Control: h.Attributes.Control(),
	}
	if b.Err != nil {
		d.damaged++
		line.Error = b.Err.Error()
	}
	if d.json() {
		if err := output.JSON(d.Out, line); err != nil {
			return err
		}
	} else if !d.records {
		short := filepath.Join(filepath.Base(filepath.Dir(line.File)), filepath.Base(line.File))
		d.table.Row(short, line.Position, line.BaseOffset, line.LastOffset, line.Records, line.Size, line.LeaderEpoch, line.Compression, output.Timestamp(line.MaxTimestamp), notesOf(line))
	} else if b.Err != nil {
		fmt.Fprintf(d.Err, "leat log dump: %s at byte %d: %s\n", b.Path, b.Position, line.Error)
	}
	if !d.records || b.Err != nil {
		return nil
	}
	return d.printRecords(b)
}

func notesOf(b output.Batch) string {
	var notes []string
	if b.Control {
		notes = append(notes, "control")
	}
	if b.Transactional {
		notes = append(notes, "transactional")
	}
	if b.ProducerID >= 0 {
		notes = append(notes, fmt.Sprintf("producer %d/%d seq %d", b.ProducerID, b.ProducerEpoch, b.BaseSequence))
	}
	if b.Error != "" {
		notes = append(notes, "DAMAGED: "+b.Error)
	}
	return strings.Join(notes, ", ")
}

func (d *dumper) printRecords(b commitlog.BatchInfo) error {
	folder := filepath.Base(filepath.Dir(b.Path))
	topic, partition := folder, int32(0)
	if at := strings.LastIndexByte(folder, '-'); at > 0 {
		if _, err := fmt.Sscanf(folder[at+1:], "%d", &partition); err == nil {
			topic = folder[:at]
		}
	}
	r := record.NewReader(0)
	defer r.Close()
	if err := r.Reset(b.Batch); err != nil {
		return err
	}
	for r.Next() {
		rec := r.Record()
		out := &gatewayv1.ConsumeRecord{
			Offset: rec.Offset, Key: bytes.Clone(rec.Key), Value: bytes.Clone(rec.Value), TimestampMs: rec.Timestamp, LeaderEpoch: b.Header.PartitionLeaderEpoch,
		}
		for _, h := range rec.Headers {
			out.Headers = append(out.Headers, &typev1.Header{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		d.buf = consume.JSONLines(d.buf[:0], topic, partition, out)
		if _, err := d.Out.Write(d.buf); err != nil {
			return err
		}
	}
	return r.Err()
}
