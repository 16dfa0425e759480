package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

// resetMargin is how long the command waits for the answer beyond --timeout.
const resetMargin = 10 * time.Second

// resetFlags are the flags of group reset.
type resetFlags struct {
	topics                  []string
	earliest, latest        bool
	offset, shift           int64
	datetime, duration      string
	dryRun, execute         bool
	timeout                 time.Duration
	offsetGiven, shiftGiven bool
}

func newGroupReset(a *app) *cobra.Command {
	var f resetFlags
	cmd := &cobra.Command{
		Use: "reset GROUP", Short: "Move a group to other offsets, also while it reads", Args: args("GROUP"), ValidArgsFunction: a.completeGroup,
		Long: `Move a group to another place, in the topics named or in everything that it has
offsets of or holds. Exactly one of the flags that begin with "to-", --by-duration
or --shift-by says where; what lies outside the log is brought to its edge, and
marked.

Without --execute nothing changes: the plan is shown, and that is what --dry-run
says in words. With --execute the same plan is made and carried out. Members may be
reading: they are asked to give the partitions up, finish and commit what they have
in hand, and get them again at the new place. A member that does not give one up
within --timeout keeps it, and that partition is not reset. If one partition cannot
be planned, because its leader does not answer for example, none is reset.

` + exitCodes,
		Example: `  leat group reset g1 --to-earliest --dry-run
  leat group reset g1 --to-latest --topic hdfs --execute
  leat group reset g1 --to-offset 1000 --topic hdfs:0,2 --execute
  leat group reset g1 --to-datetime 2026-03-01T00:00:00Z --execute
  leat group reset g1 --by-duration 2h --execute
  leat group reset g1 --shift-by -100 --topic hdfs --execute -o json`,
		RunE: func(cmd *cobra.Command, given []string) error {
			f.offsetGiven, f.shiftGiven = cmd.Flags().Changed("to-offset"), cmd.Flags().Changed("shift-by")
			req, err := f.request(cmd, time.Now())
			if err != nil {
				return err
			}
			req.Group = given[0]
			a.requestTimeout = max(a.requestTimeout, f.timeout+resetMargin)
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				return a.resetGroup(ctx, admin, req, f.execute)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.topics, "topic", nil, "topic, or topic:partition,partition…; may be repeated (default: all of the group)")
	flags.BoolVar(&f.earliest, "to-earliest", false, "to the first record there is")
	flags.BoolVar(&f.latest, "to-latest", false, "to the end")
	flags.Int64Var(&f.offset, "to-offset", 0, "to this offset in each partition")
	flags.StringVar(&f.datetime, "to-datetime", "", "to the first record of a time or later: an RFC 3339 time, or milliseconds since 1970")
	flags.StringVar(&f.duration, "by-duration", "", "to the first record that is no older than this: 90m, 2h, 7d")
	flags.Int64Var(&f.shift, "shift-by", 0, "on by so many records from what is committed, or back if negative")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show the plan and change nothing; the default")
	flags.BoolVar(&f.execute, "execute", false, "do it")
	flags.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long members may take to give partitions up")
	completeFlag(cmd, "topic", a.completeTopic)
	return cmd
}

// request checks the flags and says what they ask for.
func (f *resetFlags) request(cmd *cobra.Command, now time.Time) (*gatewayv1.ResetGroupOffsetsRequest, error) {
	targets := 0
	for _, given := range []bool{f.earliest, f.latest, f.offsetGiven, f.datetime != "", f.duration != "", f.shiftGiven} {
		if given {
			targets++
		}
	}
	switch {
	case targets != 1:
		return nil, exit.Usage(seeHelp(cmd), "%d flags say where to; give one of --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration and --shift-by", targets)
	case f.dryRun && f.execute:
		return nil, exit.Usage(seeHelp(cmd), "--dry-run and --execute exclude each other")
	case f.timeout <= 0 || f.timeout > time.Hour:
		return nil, exit.Usage(seeHelp(cmd), "--timeout is %v; it must be above 0, up to 1h", f.timeout)
	case f.offsetGiven && f.offset < 0:
		return nil, exit.Usage(seeHelp(cmd), "--to-offset is %d; offsets count from 0", f.offset)
	}
	req := &gatewayv1.ResetGroupOffsetsRequest{RevocationTimeout: durationpb.New(f.timeout)}
	var err error
	if req.Topics, err = parseTopicPartitions(cmd, f.topics); err != nil {
		return nil, err
	}
	switch {
	case f.earliest:
		req.Target = resetToPlace(typev1.OffsetSpec_PLACE_EARLIEST)
	case f.latest:
		req.Target = resetToPlace(typev1.OffsetSpec_PLACE_LATEST)
	case f.offsetGiven:
		req.Target = &gatewayv1.ResetGroupOffsetsRequest_Offset{Offset: f.offset}
	case f.shiftGiven:
		req.Target = &gatewayv1.ResetGroupOffsetsRequest_ShiftBy{ShiftBy: f.shift}
	case f.datetime != "":
		t, err := parseTime(f.datetime, now)
		if err != nil {
			return nil, exit.Usage(seeHelp(cmd), "--to-datetime: %w", err)
		}
		spec := &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Timestamp{Timestamp: timestamppb.New(t)}}
		req.Target = &gatewayv1.ResetGroupOffsetsRequest_Spec{Spec: spec}
	default:
		d, err := parseSpan(f.duration)
		if err != nil || d <= 0 {
			return nil, exit.Usage(seeHelp(cmd), "--by-duration is %q; it must be a time span above 0, such as 90m, 2h or 7d", f.duration)
		}
		req.Target = &gatewayv1.ResetGroupOffsetsRequest_ByDuration{ByDuration: durationpb.New(d)}
	}
	return req, nil
}

func resetToPlace(p typev1.OffsetSpec_Place) *gatewayv1.ResetGroupOffsetsRequest_Spec {
	return &gatewayv1.ResetGroupOffsetsRequest_Spec{Spec: &typev1.OffsetSpec{Spec: &typev1.OffsetSpec_Place_{Place: p}}}
}

// parseTopicPartitions reads TOPIC and TOPIC:0,1.
func parseTopicPartitions(cmd *cobra.Command, texts []string) ([]*gatewayv1.TopicPartitions, error) {
	var out []*gatewayv1.TopicPartitions
	for _, text := range texts {
		topic, list, named := strings.Cut(text, ":")
		if topic == "" || named && list == "" {
			return nil, exit.Usage(seeHelp(cmd), "--topic %q is neither TOPIC nor TOPIC:PARTITION,PARTITION…", text)
		}
		t := &gatewayv1.TopicPartitions{Topic: topic}
		if named {
			for part := range strings.SplitSeq(list, ",") {
				n, err := strconv.ParseInt(part, 10, 32)
				if err != nil || n < 0 {
					return nil, exit.Usage(seeHelp(cmd), "--topic %q names no partition %q; partitions count from 0", text, part)
				}
				t.Partitions = append(t.Partitions, int32(n))
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// resetGroup makes the plan, and carries it out if asked to: as the offsets that the
// plan told, so that a call which is repeated does not shift twice.
func (a *app) resetGroup(ctx context.Context, admin gatewayv1.AdminServiceClient, req *gatewayv1.ResetGroupOffsetsRequest, execute bool) error {
	req.DryRun = true
	plan, err := call(ctx, admin.ResetGroupOffsets, req)
	if err != nil {
		return err
	}
	failed := 0
	exact := &gatewayv1.GroupOffsets{}
	for _, row := range plan.GetRows() {
		if row.GetError() != nil {
			failed++
			continue
		}
		exact.Offsets = append(exact.Offsets, &gatewayv1.GroupOffset{Topic: row.GetTopic(), Partition: row.GetPartition(), NextOffset: row.GetNewOffset()})
	}
	if failed > 0 {
		if err := a.printReset(req.GetGroup(), plan, true); err != nil {
			return err
		}
		return &exit.Error{
			Code: exit.Failed, Err: fmt.Errorf("%d of %s cannot be reset, so that none was", failed, counted(len(plan.GetRows()), "partition")),
			Next: "The table tells why. Wait until it has passed, or leave those out: name the others with --topic.",
		}
	}
	if !execute {
		if err := a.printReset(req.GetGroup(), plan, true); err != nil || a.json() {
			return err
		}
		_, err := fmt.Fprintln(a.Out, "\nnothing was changed; --execute does it")
		return err
	}
	if plan.GetOnline() {
		defer a.waiting("waiting for members of %s to give up %s", req.GetGroup(), counted(len(exact.Offsets), "partition"))()
	}
	done, err := call(ctx, admin.ResetGroupOffsets, &gatewayv1.ResetGroupOffsetsRequest{
		Group: req.GetGroup(), Target: &gatewayv1.ResetGroupOffsetsRequest_Offsets{Offsets: exact}, RevocationTimeout: req.GetRevocationTimeout(),
	})
	if err != nil {
		return err
	}
	carryClamped(plan, done)
	return a.printReset(req.GetGroup(), done, false)
}

// carryClamped keeps what the plan knows of a row: what was asked for has been brought
// into the log already.
func carryClamped(plan, done *gatewayv1.ResetGroupOffsetsResponse) {
	for i, row := range done.GetRows() {
		if i < len(plan.GetRows()) && plan.Rows[i].GetTopic() == row.GetTopic() && plan.Rows[i].GetPartition() == row.GetPartition() {
			row.Clamped = row.Clamped || plan.Rows[i].GetClamped()
		}
	}
}

// printReset prints a plan, or what was done, and gives the exit code of what was.
func (a *app) printReset(group string, r *gatewayv1.ResetGroupOffsetsResponse, dry bool) error {
	list := output.GroupReset{Group: group, DryRun: dry, Online: r.GetOnline(), Partitions: []output.OffsetReset{}}
	t := output.NewTable("TOPIC", ">PARTITION", ">OLD", ">NEW", ">CHANGE", ">LOG START", ">END", "MEMBER", "NOTE")
	failed := 0
	for _, row := range r.GetRows() {
		entry := output.OffsetReset{
			Topic: row.GetTopic(), Partition: row.GetPartition(), Old: row.GetOldOffset(), New: row.GetNewOffset(), Clamped: row.GetClamped(),
			LogStart: row.GetLogStart(), End: row.GetEnd(), Member: orNull(row.GetMemberId()),
		}
		change, note := "-", ""
		if entry.Old >= 0 && entry.New >= 0 && row.GetError() == nil {
			change = fmt.Sprintf("%+d", entry.New-entry.Old)
		}
		if entry.Clamped {
			note = "brought into the log"
		}
		if e := row.GetError(); e != nil {
			failed++
			entry.Error = errorOf(e)
			note = entry.Error.Reason + ": " + entry.Error.Message
		}
		list.Partitions = append(list.Partitions, entry)
		t.Row(entry.Topic, entry.Partition, output.Offset(entry.Old), output.Offset(entry.New), change, output.Offset(entry.LogStart), output.Offset(entry.End), output.OrDash(row.GetMemberId()), note)
	}
	if !a.json() {
		what := "reset of group " + group
		if dry {
			what = "plan of a " + what
		}
		if r.GetOnline() && dry {
			what += "; its members give the partitions up first"
		}
		if _, err := fmt.Fprintf(a.Out, "%s\n\n", what); err != nil {
			return err
		}
	}
	if dry {
		failed = 0 // a plan has failed nothing; the caller says what it means
	}
	err := a.printList(list, t, failed, len(list.Partitions), "partitions were not reset")
	var code *exit.Error
	if errors.As(err, &code) {
		code.Next = "Give members more time with --timeout, or see what they wait for with `leat group describe " + group + "`; then reset those partitions with --topic."
	}
	return err
}
