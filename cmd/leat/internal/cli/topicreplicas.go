package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

// committedEnd is how --before names the high watermark.
const committedEnd = "end"

func newTopicDeleteRecords(a *app) *cobra.Command {
	var before string
	var partitions []int32
	cmd := &cobra.Command{
		Use: "delete-records NAME", Short: "Delete the oldest records of a topic", Args: args("NAME"),
		Long: `Delete the records below an offset, in the partitions named or in all. The
offset is the first one to keep; "` + committedEnd + `" deletes everything that is committed. The
command ends when every in-sync replica has moved its log start; whole segments
are removed from the disks, and what lies in a segment that is still needed is
merely not readable any more.

` + exitCodes,
		Example: `  leat topic delete-records hdfs --partition 0 --before 1000
  leat topic delete-records hdfs --before end`,
		RunE: func(cmd *cobra.Command, given []string) error {
			offset, err := parseBefore(cmd, before)
			if err != nil {
				return err
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				return a.deleteRecords(ctx, admin, given[0], partitions, offset)
			})
		},
	}
	cmd.Flags().StringVar(&before, "before", "", `first offset to keep, or "`+committedEnd+`"`)
	cmd.Flags().Int32SliceVar(&partitions, "partition", nil, "partitions (default all)")
	return cmd
}

// parseBefore reads --before; -1 stands for the high watermark.
func parseBefore(cmd *cobra.Command, before string) (int64, error) {
	if before == committedEnd {
		return -1, nil
	}
	offset, err := strconv.ParseInt(before, 10, 64)
	switch {
	case before == "":
		return 0, exit.Usage(seeHelp(cmd), "--before is missing: say which record is the first to keep")
	case err != nil || offset < 0:
		return 0, exit.Usage(seeHelp(cmd), "--before is %q; give an offset from 0, or %q", before, committedEnd)
	}
	return offset, nil
}

func (a *app) deleteRecords(ctx context.Context, admin gatewayv1.AdminServiceClient, topic string, partitions []int32, before int64) error {
	if len(partitions) == 0 {
		d, err := call(ctx, admin.DescribeTopic, &gatewayv1.DescribeTopicRequest{Topic: topic})
		if err != nil {
			return err
		}
		for _, p := range d.GetPartitions() {
			partitions = append(partitions, p.GetPartition())
		}
	}
	request := &gatewayv1.DeleteRecordsRequest{Topic: topic}
	for _, n := range partitions {
		request.Partitions = append(request.Partitions, &gatewayv1.RecordsToDelete{Partition: n, BeforeOffset: before})
	}
	r, err := call(ctx, admin.DeleteRecords, request)
	if err != nil {
		return err
	}
	list := output.DeletedRecords{Topic: topic, Partitions: []output.LogStart{}}
	t := output.NewTable(">PARTITION", ">STARTS AT", "ERROR")
	failed := 0
	for _, p := range r.GetResults() {
		entry := output.LogStart{Partition: p.GetPartition(), LogStartOffset: p.GetLogStartOffset()}
		problem := ""
		if e := p.GetError(); e != nil {
			failed++
			entry.LogStartOffset, entry.Error = -1, errorOf(e)
			problem = entry.Error.Reason + ": " + entry.Error.Message
		}
		list.Partitions = append(list.Partitions, entry)
		t.Row(entry.Partition, output.Offset(entry.LogStartOffset), problem)
	}
	return a.printList(list, t, failed, len(list.Partitions), "partitions kept their records")
}

// printList prints JSON or a table, and gives the exit code of its failed entries.
func (a *app) printList(list any, t *output.Table, failed, all int, what string) error {
	var err error
	if a.json() {
		err = output.JSON(a.Out, list)
	} else {
		err = t.Write(a.Out)
	}
	if err != nil || failed == 0 {
		return err
	}
	code := exit.Partly
	if failed == all {
		code = exit.Failed
	}
	return exit.With(code, fmt.Errorf("%d of %d %s", failed, all, what))
}

func newTopicDigest(a *app) *cobra.Command {
	var timeout time.Duration
	var partitions []int32
	cmd := &cobra.Command{
		Use: "digest NAME", Short: "Compare the replicas of a topic by a hash of their records", Args: args("NAME"),
		Long: `Hash the records of each replica, from the highest log start of the replicas up
to one high watermark for each partition: offset, leader epoch, timestamp, key,
value and headers of every record, whatever batches they lie in. Replicas hold
the same if their digests are the same. A replica that lives is waited for until
it has reached the high watermark; one that does not within --timeout has no
digest (null in JSON). Compacted topics may differ while a replica has been
cleaned further than another.

The exit code is 1 if two replicas of a partition differ.

` + exitCodes,
		Example: "  leat topic digest hdfs\n  leat topic digest hdfs --timeout 60s -o json",
		RunE: func(cmd *cobra.Command, given []string) error {
			if timeout <= 0 {
				return exit.Usage(seeHelp(cmd), "--timeout is %v; it must be above 0", timeout)
			}
			a.requestTimeout = timeout + digestMargin
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				return a.digest(ctx, admin, given[0], partitions, timeout)
			})
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long to wait for replicas that live")
	cmd.Flags().Int32SliceVar(&partitions, "partition", nil, "partitions (default all)")
	return cmd
}

// digestMargin is how long the command waits for the answer beyond --timeout.
const digestMargin = 2 * time.Second

func (a *app) digest(ctx context.Context, admin gatewayv1.AdminServiceClient, topic string, partitions []int32, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := call(ctx, admin.DigestTopic, &gatewayv1.DigestTopicRequest{Topic: topic, Partitions: partitions})
	if err != nil {
		return err
	}
	d := output.TopicDigest{Topic: topic, Partitions: []output.PartitionDigest{}}
	t := output.NewTable(">PARTITION", ">FROM", ">HIGH WATERMARK", ">REPLICA", ">RECORDS", "DIGEST")
	var differ []string
	failed := 0
	for _, p := range r.GetPartitions() {
		entry := output.PartitionDigest{Partition: p.GetPartition(), HighWatermark: p.GetHighWatermark(), FromOffset: p.GetFromOffset(), Replicas: []output.ReplicaDigest{}}
		if e := p.GetError(); e != nil {
			failed++
			entry.Error = errorOf(e)
			t.Row(entry.Partition, "-", "-", "-", "-", entry.Error.Reason+": "+entry.Error.Message)
		}
		found := map[string]bool{}
		for _, replica := range p.GetReplicas() {
			row := output.ReplicaDigest{Broker: replica.GetBroker()}
			shown, records := "", "-"
			if e := replica.GetError(); e != nil {
				row.Error = errorOf(e)
				shown = row.Error.Reason + ": " + row.Error.Message
			} else {
				shown = hex.EncodeToString(replica.GetDigest())
				row.Digest, row.Records = &shown, replica.GetRecords()
				records = output.Count(replica.GetRecords())
				found[shown] = true
			}
			entry.Replicas = append(entry.Replicas, row)
			t.Row(entry.Partition, entry.FromOffset, entry.HighWatermark, row.Broker, records, shown)
		}
		if len(found) > 1 {
			differ = append(differ, strconv.Itoa(int(entry.Partition)))
		}
		d.Partitions = append(d.Partitions, entry)
	}
	if err := a.printList(d, t, failed, len(d.Partitions), "partitions have no leader that answers"); err != nil || len(differ) == 0 {
		return err
	}
	return &exit.Error{
		Code: exit.Failed, Err: fmt.Errorf("the replicas of topic %s hold different records in partitions %s", topic, strings.Join(differ, ", ")),
		Next: "Look at one replica with `leat consume --replica`; unless the topic is compacted, please report it.",
	}
}

func newClusterElectLeaders(a *app) *cobra.Command {
	var topic string
	var partitions []int32
	var unclean bool
	cmd := &cobra.Command{
		Use: "elect-leaders", Short: "Give partitions back to their preferred leaders, or elect one by force", Args: args(),
		Long: `Elect the preferred leader, which is the first replica, of all partitions or of
those named, where it is in sync. Without auto.leader.rebalance.enable=false the
mesh does so by itself after a while.

With --unclean, partitions that have no leader, because nobody who is known to
have all committed records lives, get the replica that lives and has most.
RECORDS THAT WERE ACKNOWLEDGED ARE LOST by that; the topic must be named.

` + exitCodes,
		Example: `  leat cluster elect-leaders
  leat cluster elect-leaders --topic hdfs --partition 0
  leat cluster elect-leaders --topic hdfs --partition 0 --unclean`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case unclean && topic == "":
				return exit.Usage("Add --topic.", "--unclean loses records, so that the topic must be named")
			case len(partitions) > 0 && topic == "":
				return exit.Usage("Add --topic.", "--partition needs --topic")
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.ElectLeaders, &gatewayv1.ElectLeadersRequest{Topic: topic, Partitions: partitions, Unclean: unclean})
				if err != nil {
					return err
				}
				return a.printElections(r)
			})
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "topic (default all)")
	cmd.Flags().Int32SliceVar(&partitions, "partition", nil, "partitions of the topic (default all)")
	cmd.Flags().BoolVar(&unclean, "unclean", false, "elect a replica that lives although records are lost")
	return cmd
}

func (a *app) printElections(r *gatewayv1.ElectLeadersResponse) error {
	list := output.Elections{Elections: []output.Election{}}
	t := output.NewTable("TOPIC", ">PARTITION", ">LEADER", "RESULT")
	failed := 0
	for _, e := range r.GetResults() {
		entry := output.Election{Topic: e.GetTopic(), Partition: e.GetPartition(), Leader: e.GetLeader(), Changed: e.GetChanged()}
		result := "unchanged"
		if e.GetChanged() {
			result = "elected"
		}
		if problem := e.GetError(); problem != nil {
			failed++
			entry.Error = errorOf(problem)
			result = entry.Error.Reason + ": " + entry.Error.Message
		}
		list.Elections = append(list.Elections, entry)
		t.Row(entry.Topic, entry.Partition, output.Broker(entry.Leader), result)
	}
	if len(list.Elections) == 0 && !a.json() {
		_, err := fmt.Fprintln(a.Out, "every partition is led by its preferred leader")
		return err
	}
	err := a.printList(list, t, failed, len(list.Elections), "leaders could not be elected")
	var code *exit.Error
	if errors.As(err, &code) {
		code.Next = "See `leat topic describe` for the replicas in sync, and `leat cluster describe` for who lives."
	}
	return err
}
