package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"

	"github.com/leat-io/leat/cmd/leat/internal/consume"
	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

type consumeFlags struct {
	group, instance string
	pattern         string
	fromBeginning   bool
	offset          int64
	since           string
	partition       int32
	replica         int32
	maxMessages     int64
	follow          bool
	format          string
	autoCommit      bool
	clientID        string
	clientRack      string
}

func newConsumeCommand(a *app) *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume [TOPIC…]", Short: "Print the records of topics", Args: topicsOrPattern,
		Long: `Print records of one or more topics as they come, until SIGINT or SIGTERM.

Without a group, reading starts at the end, or where --from-beginning, --offset
or --since say. With a group, it starts at the group's committed offset; the
flags apply only where there is none. What was printed, and nothing else, is
committed every second and before the command exits, also on SIGINT and
SIGTERM; --auto-commit=false leaves the group's offsets alone.

--topic-pattern subscribes to every topic whose whole name matches a regular
expression (RE2), also to those made later; with a group.

--follow=false stops at each partition's high watermark as of the start; with a
group, once it has settled and has no more partitions to give.
--max-messages stops after exactly so many records.

--client-rack reads from replicas in sync in the same rack, where there are any:
less traffic between racks, for records that come a moment later.

--replica is for looking at one replica; without a group. With --follow=false it
stops at the high watermark that this replica knows.

Without --format the value and LF are printed. --format takes the verbs %t
topic, %p partition, %o offset, %T timestamp (ms since 1970), %k key, %h headers
(key=value, with commas between), %v value, %%, and the escapes \n \t \r \0 \\.
A record ends with LF unless the format itself ends with an escape; the escape
\c adds nothing, and prevents the LF. Null prints as nothing: use -o json to
tell null from empty.

-o json prints one object a line:
{"topic","partition","offset","timestamp","key","value","headers":[{"key","value"}],"leader_epoch"},
with key_base64 or value_base64 instead where the bytes are not UTF-8; null is
null. ` + "`leat produce --input json`" + ` takes it.

` + exitCodes,
		Example: `  leat consume hdfs --from-beginning --follow=false
  leat consume hdfs --group g1 --from-beginning --max-messages 2000
  leat consume --topic-pattern 'logs-.*' --group g1 --from-beginning
  leat consume hdfs --partition 0 --offset 100 --format '%o\t%k\t%v'
  leat consume hdfs --since '1h ago' -o json
  leat consume hdfs --replica 2 --from-beginning --follow=false`,
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.consume(cmd, given, f)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.group, "group", "", "consumer group to join (default: none, nothing is committed)")
	completeFlag(cmd, "group", a.completeGroupName)
	fs.StringVar(&f.pattern, "topic-pattern", "", "regular expression (RE2) of the topics to read, those made later included; needs --group")
	fs.StringVar(&f.instance, "instance-id", "", "static instance id in the group")
	fs.BoolVar(&f.fromBeginning, "from-beginning", false, "start at the first record; with a group, where it has no committed offset")
	fs.Int64Var(&f.offset, "offset", 0, "start at this offset of each partition read")
	fs.StringVar(&f.since, "since", "", "start at the first record of a time or later: "+timeForms)
	fs.Int32Var(&f.partition, "partition", 0, "read this partition only")
	fs.StringVar(&f.clientRack, "client-rack", "", "rack of this client: read from replicas in sync there, if there are any")
	fs.Int32Var(&f.replica, "replica", 0, "read from this broker's replicas, whether they lead or follow, as far as they know records to be committed")
	fs.Int64Var(&f.maxMessages, "max-messages", 0, "stop after so many records (default: never)")
	fs.BoolVar(&f.follow, "follow", true, "go on with records as they come; false stops at the end as of the start")
	fs.StringVar(&f.format, "format", "", "how to print a record")
	fs.BoolVar(&f.autoCommit, "auto-commit", true, "commit what was printed")
	fs.StringVar(&f.clientID, "client-id", "leat-consume", "name of this client in logs and metrics")
	return cmd
}

// check finds wrong usage, and gives the opening message without partitions.
func (f *consumeFlags) check(cmd *cobra.Command, topics []string, json bool) (*gatewayv1.ConsumeOpen, consume.Format, error) {
	help, changed := seeHelp(cmd), cmd.Flags().Changed
	starts := 0
	for _, given := range []bool{f.fromBeginning, changed("offset"), changed("since")} {
		if given {
			starts++
		}
	}
	switch {
	case starts > 1:
		return nil, nil, exit.Usage(help, "--from-beginning, --offset and --since exclude each other")
	case f.offset < 0:
		return nil, nil, exit.Usage(help, "--offset is %d; offsets count from 0", f.offset)
	case f.partition < 0:
		return nil, nil, exit.Usage(help, "--partition is %d; partitions count from 0", f.partition)
	case changed("replica") && f.replica < 1:
		return nil, nil, exit.Usage(help, "--replica is %d; brokers count from 1", f.replica)
	case f.clientRack != "" && changed("replica"):
		return nil, nil, exit.Usage(help, "--replica and --client-rack exclude each other")
	case f.group != "" && changed("replica"):
		return nil, nil, exit.Usage(help, "--replica and --group exclude each other")
	case f.group != "" && (changed("partition") || changed("offset")):
		return nil, nil, exit.Usage("Leave out --group, or set the group's offset with `leat group reset`.", "a group shares out partitions and keeps offsets by itself, so --partition and --offset do not go with --group")
	case f.group == "" && (changed("auto-commit") && f.autoCommit || f.instance != ""):
		return nil, nil, exit.Usage(help, "--auto-commit and --instance-id need --group")
	case changed("group") && f.group == "":
		return nil, nil, exit.Usage(help, "--group is empty")
	case f.pattern != "" && f.group == "":
		return nil, nil, exit.Usage("Give it a --group, or name the topics.", "--topic-pattern needs --group")
	case changed("max-messages") && f.maxMessages < 1:
		return nil, nil, exit.Usage(help, "--max-messages is %d; it must be at least 1", f.maxMessages)
	case json && changed("format"):
		return nil, nil, exit.Usage(help, "--format and -o json exclude each other")
	case slices.Contains(topics, ""):
		return nil, nil, exit.Usage(help, "a topic name is empty")
	}
	if _, err := compileTopics(f.pattern); err != nil {
		return nil, nil, exit.Usage(help, "--topic-pattern %q is not a regular expression (RE2): %w", f.pattern, err)
	}
	format := consume.ValueLines
	if json {
		format = consume.JSONLines
	} else if changed("format") {
		parsed, err := consume.ParseFormat(f.format)
		if err != nil {
			return nil, nil, exit.Usage(help, "--format: %w", err)
		}
		format = parsed
	}
	open := &gatewayv1.ConsumeOpen{
		Handshake: rpc.LocalHandshake(), ClientId: f.clientID, Group: f.group, InstanceId: f.instance, StartAt: gatewayv1.StartAt_START_AT_LATEST,
		LeaveOffsets: f.group != "" && !f.autoCommit, ClientRack: f.clientRack, TopicPattern: f.pattern,
	}
	if changed("replica") {
		// Only the gateway sees how far this replica has come.
		open.Replica, open.StopAtEnd = &f.replica, !f.follow
	}
	if f.fromBeginning {
		open.StartAt = gatewayv1.StartAt_START_AT_EARLIEST
	}
	if changed("since") {
		t, err := parseTime(f.since, time.Now())
		if err != nil {
			return nil, nil, exit.Usage(help, "--since: %w", err)
		}
		open.StartAt, open.StartTimestampMs = gatewayv1.StartAt_START_AT_TIMESTAMP, t.UnixMilli()
	}
	return open, format, nil
}

func (a *app) consume(cmd *cobra.Command, topics []string, f consumeFlags) error {
	slices.Sort(topics)
	topics = slices.Compact(topics)
	open, format, err := f.check(cmd, topics, a.json())
	if err != nil {
		return err
	}
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	cfg := consume.Config{
		Client: gatewayv1.NewConsumerServiceClient(conn), Open: open, MaxMessages: f.maxMessages,
		AutoCommit: f.autoCommit, Format: format, Out: a.Out, Interrupt: a.interrupt,
	}
	admin := gatewayv1.NewAdminServiceClient(conn)
	if err := a.consumeWhat(cmd, admin, topics, f, &cfg); err != nil {
		return err
	}
	cfg.Standing = func(ctx context.Context, member string) (consume.Standing, error) {
		return standingOf(ctx, admin, f.group, member)
	}
	progress, clear := a.consumeProgress()
	cfg.Progress = progress
	cfg.Note = func(format string, args ...any) { clear(); a.notef(format, args...) }
	summary, err := consume.Run(cmd.Context(), cfg)
	clear()
	a.printConsumed(summary)
	return a.consumeOutcome(summary, err)
}

// standingOf tells how a group stands with one of its members. A group that does not know
// the member has not settled with it.
func standingOf(ctx context.Context, admin gatewayv1.AdminServiceClient, group, member string) (consume.Standing, error) {
	d, err := admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: group})
	if err != nil {
		return consume.Standing{}, rpc.FromError(err)
	}
	for _, m := range d.GetMembers() {
		if m.GetMemberId() == member {
			return consume.Standing{Stable: d.GetSummary().GetState() == "stable", Partitions: int(m.GetPartitions())}, nil
		}
	}
	return consume.Standing{}, nil
}

// consumeWhat finds the partitions to read and, without following, their ends.
func (a *app) consumeWhat(cmd *cobra.Command, admin gatewayv1.AdminServiceClient, topics []string, f consumeFlags, cfg *consume.Config) error {
	ctx, cancel := a.callContext(cmd.Context())
	defer cancel()
	if !f.follow && cfg.Open.Replica == nil {
		cfg.Ends = map[consume.Partition]int64{}
	}
	latest := &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: typev1.OffsetSpec_PLACE_LATEST}}
	byHand := cmd.Flags().Changed("partition") || cmd.Flags().Changed("offset")
	named := topics
	if f.pattern != "" {
		matched, err := topicsMatching(ctx, admin, f.pattern)
		if err != nil {
			return err
		}
		topics = append(slices.Clone(topics), matched...)
		slices.Sort(topics)
		topics = slices.Compact(topics)
	}
	for _, topic := range topics {
		d, err := call(ctx, admin.DescribeTopic, &gatewayv1.DescribeTopicRequest{Topic: topic})
		if err != nil {
			return err
		}
		var numbers []int32
		for _, p := range d.GetPartitions() {
			if !cmd.Flags().Changed("partition") || p.GetPartition() == f.partition {
				numbers = append(numbers, p.GetPartition())
			}
		}
		if len(numbers) == 0 {
			return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_UNKNOWN_PARTITION, "topic %s has no partition %d, it has %d partitions", topic, f.partition, len(d.GetPartitions()))
		}
		for _, n := range numbers {
			cfg.Partitions = append(cfg.Partitions, consume.Partition{Topic: topic, Partition: n})
			if byHand {
				p := &gatewayv1.ConsumePartition{Topic: topic, Partition: n}
				if cmd.Flags().Changed("offset") {
					p.Offset = &f.offset
				}
				cfg.Open.Partitions = append(cfg.Open.Partitions, p)
			}
		}
		if cfg.Ends == nil {
			continue
		}
		if err := endsOf(ctx, admin, topic, numbers, latest, cfg.Ends); err != nil {
			return err
		}
		for _, n := range numbers {
			if end := cfg.Ends[consume.Partition{Topic: topic, Partition: n}]; f.offset > end {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "--offset %d lies behind the end of partition %d of topic %s, which is %d", f.offset, n, topic, end)
			}
		}
	}
	if !byHand {
		cfg.Open.Topics = named
	}
	return nil
}

// endsOf finds the visible ends of partitions, waiting for leaders that do not
// answer yet.
func endsOf(ctx context.Context, admin gatewayv1.AdminServiceClient, topic string, numbers []int32, latest *typev1.OffsetSpec, ends map[consume.Partition]int64) error {
	backoff := rpc.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for {
		r, err := call(ctx, admin.ListOffsets, &gatewayv1.ListOffsetsRequest{Topic: topic, Partitions: numbers, Spec: latest})
		if err != nil {
			return err
		}
		var missing []int32
		var why *rpc.Error
		for _, o := range r.GetOffsets() {
			if e := rpc.FromProto(o.GetError()); e != nil {
				missing, why = append(missing, o.GetPartition()), e
				continue
			}
			ends[consume.Partition{Topic: topic, Partition: o.GetPartition()}] = o.GetOffset()
		}
		if why == nil {
			return nil
		}
		if !rpc.Retryable(why) {
			return why
		}
		numbers = missing
		select {
		case <-time.After(backoff.Next()):
		case <-ctx.Done():
			return exit.With(exit.Unknown, why)
		}
	}
}

func (a *app) printConsumed(s consume.Summary) {
	rate := float64(s.Records) / max(s.Elapsed.Seconds(), 1e-9)
	if !s.OutputClosed {
		fmt.Fprintf(a.Err, "%s, %s in %s, %s records/s\n", output.Records(s.Records), output.Bytes(s.Bytes), output.Duration(s.Elapsed), output.Count(int64(rate)))
	}
}

func (a *app) consumeOutcome(s consume.Summary, err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return exit.Silent(exit.Interrupted)
	case err != nil && s.Records > 0:
		return exit.With(exit.Partly, err)
	case err != nil:
		return err
	case s.Uncommitted > 0:
		why := "no answer"
		if s.CommitErr != nil {
			why = fmt.Sprintf("%s (%s)", strings.TrimRight(s.CommitErr.Message, "."), rpc.ReasonName(s.CommitErr.Reason))
		}
		return &exit.Error{
			Code: exit.Unknown, Err: fmt.Errorf("the last records printed of %d partitions may not be committed: %s", s.Uncommitted, why),
			Next: "See `leat group describe`; the group may get them again.",
		}
	case s.Interrupted:
		return exit.Silent(exit.Interrupted)
	case s.PartitionErr != nil && s.Records > 0:
		return exit.With(exit.Partly, s.PartitionErr)
	case s.PartitionErr != nil:
		return s.PartitionErr
	}
	return nil
}
