package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/libs/commitlog"
	"github.com/leat-io/leat/libs/topicid"
	"github.com/leat-io/leat/libs/vfs"
)

// diskLock is the file that a broker holds a lock on, in the folder that holds its
// replicas' folders.
const diskLock = ".lock"

func newLogVerify(a *app) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use: "verify DIR", Short: "Check the log in the folder of a replica, or in all folders below DIR", Args: args("DIR"),
		Long: `Check every batch in DIR, or, if DIR holds no segment, in each folder below it:
checksums, offsets, records; every entry of the indexes; the leader epochs and the
other small files. The folder may have any name. Each fault is reported at its
place, the first one first, and makes the exit code 1.

A torn tail and short indexes are what an unclean stop leaves behind; they are
reported as notes, and are no faults. A log that is in use may seem to have them.

With --repair-indexes, indexes that are damaged, short or missing and the
leader-epoch checkpoint are made anew from the batches. No .log file is changed.
The broker must not be running.

` + exitCodes,
		Example: `  leat log verify D/broker-1/hdfs-0
  leat log verify D/broker-1 -o json
  leat log verify D/broker-1/hdfs-0 --repair-indexes`,
		RunE: func(_ *cobra.Command, given []string) error {
			dirs, err := logFolders(given[0])
			if err != nil {
				return err
			}
			faults := 0
			for _, dir := range dirs {
				n, err := a.verifyFolder(dir, repair)
				if err != nil {
					return err
				}
				faults += n
			}
			if faults > 0 {
				return exit.Failure("Keep a copy of the folder, then see docs/operations.md on damaged logs.", "%s found", faultCount(faults))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&repair, "repair-indexes", false, "make damaged, short and missing indexes anew")
	return cmd
}

// verifyFolder checks one folder, after repairing it if asked to, prints what it
// found, and returns how many faults are left.
func (a *app) verifyFolder(dir string, repair bool) (faults int, err error) {
	var repaired []string
	if repair {
		if repaired, err = repairFolder(dir); err != nil {
			return 0, err
		}
	}
	r, err := commitlog.Verify(vfs.OS(), dir, commitlog.VerifyOptions{})
	if err != nil {
		return 0, fmt.Errorf("verify %s: %w", dir, err)
	}
	v := verification(&r, repaired)
	if a.json() {
		return r.FaultCount, output.JSON(a.Out, v)
	}
	return r.FaultCount, printVerification(a.Out, &v)
}

func repairFolder(dir string) (repaired []string, err error) {
	lock := filepath.Join(filepath.Dir(filepath.Clean(dir)), diskLock)
	exists, err := vfs.Exists(vfs.OS(), lock)
	if err != nil {
		return nil, err
	}
	if exists {
		held, lockErr := vfs.OS().Lock(lock)
		if errors.Is(lockErr, vfs.ErrLocked) {
			return nil, exit.Failure("Stop the broker first.", "%s is in use by a broker", filepath.Dir(lock))
		}
		if lockErr != nil {
			return nil, lockErr
		}
		defer func() { err = errors.Join(err, held.Close()) }()
	}
	r, err := commitlog.RepairIndexes(vfs.OS(), dir, commitlog.VerifyOptions{})
	if err != nil {
		return nil, fmt.Errorf("repair %s: %w", dir, err)
	}
	repaired = append(r.Indexes, r.Snapshots...)
	if r.Epochs {
		repaired = append(repaired, "leader-epoch-checkpoint")
	}
	for i := range repaired {
		repaired[i] = filepath.Base(repaired[i])
	}
	return repaired, nil
}

func verification(r *commitlog.VerifyReport, repaired []string) output.Verification {
	v := output.Verification{
		Dir: r.Dir, OK: r.OK(), Topic: r.Metadata.Topic, Partition: r.Metadata.Partition,
		Start: r.Start, End: r.End, Segments: r.Segments, Batches: r.Batches, Records: r.Records, Bytes: r.Bytes, IndexEntries: r.IndexEntries,
		FaultCount: r.FaultCount, Faults: findings(r.Faults), Notes: findings(r.Notes), TornBytes: r.TornBytes, Repaired: append([]string{}, repaired...),
	}
	if r.Metadata.Topic != "" {
		v.TopicID = topicid.ID(r.Metadata.TopicID).String()
	}
	return v
}

func findings(found []commitlog.Finding) []output.Finding {
	out := []output.Finding{}
	for _, f := range found {
		line := output.Finding{File: f.Path, Detail: f.Detail}
		if f.Position >= 0 {
			line.Position = &f.Position
		}
		if f.Offset >= 0 {
			line.Offset = &f.Offset
		}
		out = append(out, line)
	}
	return out
}

func printVerification(w io.Writer, v *output.Verification) error {
	state := "ok"
	if !v.OK {
		state = "DAMAGED, " + faultCount(v.FaultCount)
	}
	_, err := fmt.Fprintf(w, "%s: %s: offsets %d to %d, %d records in %d batches, %d segments, %d bytes, %d index entries\n",
		v.Dir, state, v.Start, v.End, v.Records, v.Batches, v.Segments, v.Bytes, v.IndexEntries)
	for _, name := range v.Repaired {
		if err == nil {
			_, err = fmt.Fprintf(w, "  repaired: %s\n", name)
		}
	}
	for i, f := range v.Faults {
		kind := "fault"
		if i == 0 {
			kind = "first fault"
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s: %s\n", kind, findingText(&f))
		}
	}
	if hidden := v.FaultCount - len(v.Faults); hidden > 0 && err == nil {
		_, err = fmt.Fprintf(w, "  and %s more\n", faultCount(hidden))
	}
	for _, f := range v.Notes {
		if err == nil {
			_, err = fmt.Fprintf(w, "  note: %s\n", findingText(&f))
		}
	}
	return err
}

func findingText(f *output.Finding) string {
	s := filepath.Base(f.File)
	if f.Position != nil {
		s += fmt.Sprintf(" at byte %d", *f.Position)
	}
	if f.Offset != nil {
		s += fmt.Sprintf(" (offset %d)", *f.Offset)
	}
	return s + ": " + f.Detail
}

func faultCount(n int) string {
	if n == 1 {
		return "1 fault"
	}
	return fmt.Sprintf("%d faults", n)
}
