package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

// maxRateOver is how long the gateway watches at most.
const maxRateOver = time.Minute

func newGroupDescribe(a *app) *cobra.Command {
	rateOver := time.Second
	cmd := &cobra.Command{
		Use: "describe GROUP", Short: "Show members, assignment, lag, and what holds a group back", Args: args("GROUP"), ValidArgsFunction: a.completeGroup,
		Long: `Show the members of a group and, for each partition, how far the group has
come, how much is left, and what holds it back.

LAG is in records, and AGE is how long ago the oldest of them was appended, as the
leader remembers; "≥" says that it is older than that. RATE is what the group got
through in a second, from two looks: when there is a lag and the gateway has not
looked before, the command watches for --rate-over. Members commit every few
seconds, so that a longer time tells more. CATCH UP is the time to read what is
left at that rate, while records come as they did.

HELD BACK BY is broker, network, credit (the client grants none), application (it
has records and has not finished them) or no owner. A member is stuck that lives,
and has finished nothing for 30 s although it has records; it keeps its partitions
unless it asked to be expelled for that (max_processing).

` + exitCodes,
		Example: `  leat group describe g1
  leat group describe g1 --rate-over 10s
  leat group describe g1 -o json`,
		RunE: func(cmd *cobra.Command, given []string) error {
			if rateOver < 0 || rateOver > maxRateOver {
				return exit.Usage(seeHelp(cmd), "--rate-over is %v; it must be 0 to %v", rateOver, maxRateOver)
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := a.describeGroup(ctx, admin, given[0], rateOver, cmd.Flags().Changed("rate-over"))
				if err != nil {
					return err
				}
				return a.printGroup(r)
			})
		},
	}
	cmd.Flags().DurationVar(&rateOver, "rate-over", rateOver, "how long to watch for rates; 0 does not watch")
	return cmd
}

// describeGroup describes a group, and watches it if asked to, or if there is a lag of
// which no rate is known yet.
func (a *app) describeGroup(ctx context.Context, admin gatewayv1.AdminServiceClient, group string, over time.Duration, asked bool) (*gatewayv1.DescribeGroupResponse, error) {
	if !asked || over == 0 {
		r, err := call(ctx, admin.DescribeGroup, &gatewayv1.DescribeGroupRequest{Group: group})
		if err != nil || over == 0 || !lagsUnseen(r) {
			return r, err
		}
	}
	defer a.waiting("watching group %s for %v", group, over)()
	return call(ctx, admin.DescribeGroup, &gatewayv1.DescribeGroupRequest{Group: group, RateOver: durationpb.New(over)})
}

// lagsUnseen reports whether a member has something to read of which no rate is
// known.
func lagsUnseen(r *gatewayv1.DescribeGroupResponse) bool {
	for _, p := range r.GetPartitions() {
		if p.GetLag() > 0 && p.GetMemberId() != "" && p.GetRecordsPerSecond() < 0 {
			return true
		}
	}
	return false
}

func (a *app) printGroup(r *gatewayv1.DescribeGroupResponse) error {
	d := output.GroupDescription{
		Group: r.GetSummary().GetGroup(), State: r.GetSummary().GetState(), Epoch: r.GetGroupEpoch(), Assignor: r.GetAssignor(),
		Members: []output.Member{}, Partitions: []output.GroupPartition{},
	}
	members := output.NewTable("MEMBER", "INSTANCE", "CLIENT", "HOST", ">EPOCH", ">PARTITIONS", ">LAST SIGN", "STATE")
	for _, m := range r.GetMembers() {
		d.Members = append(d.Members, memberOf(m))
		members.Row(m.GetMemberId(), output.OrDash(m.GetInstanceId()), output.OrDash(m.GetClientId()), output.OrDash(m.GetClientHost()),
			m.GetMemberEpoch(), m.GetPartitions(), span(m.GetLastSign()), memberState(m))
	}
	partitions := output.NewTable("TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", ">AGE", ">RATE", ">CATCH UP", "MEMBER", "HELD BACK BY")
	for _, p := range r.GetPartitions() {
		d.Partitions = append(d.Partitions, partitionOf(p))
		partitions.Row(output.OrDash(p.GetTopic()), p.GetPartition(), output.Offset(p.GetCommitted()), output.Offset(p.GetEnd()), output.Lag(p.GetLag()),
			lagAge(p), perSecond(p.GetRecordsPerSecond()), catchUp(p), output.OrDash(p.GetMemberId()), heldBack(p))
	}
	total := totalsOf(r)
	d.TotalLag, d.CatchUpMs = total.lag, millis(total.catchUp)
	if r.GetLastRebalance() != nil {
		last := rebalanceOf(r.GetLastRebalance())
		d.LastRebalance = &last
	}
	if a.json() {
		return output.JSON(a.Out, d)
	}
	if _, err := fmt.Fprintf(a.Out, "group %s: %s, epoch %d, %s\n%s%s\n", d.Group, d.State, d.Epoch, counted(len(d.Members), "member"), total.sentence(), lastSentence(d.Group, r.GetLastRebalance())); err != nil {
		return err
	}
	if members.Len() > 0 {
		if err := members.Write(a.Out); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.Out); err != nil {
			return err
		}
	}
	return partitions.Write(a.Out)
}

func memberOf(m *gatewayv1.GroupMember) output.Member {
	topics := m.GetTopics()
	if topics == nil {
		topics = []string{}
	}
	return output.Member{
		MemberID: m.GetMemberId(), ClientID: m.GetClientId(), ClientHost: m.GetClientHost(), MemberEpoch: m.GetMemberEpoch(),
		Partitions: m.GetPartitions(), InstanceID: orNull(m.GetInstanceId()), Topics: topics, TopicPattern: orNull(m.GetTopicPattern()),
		SessionTimeoutMs: millis(m.GetSessionTimeout()), RebalanceTimeoutMs: millis(m.GetRebalanceTimeout()), MaxProcessingMs: millis(m.GetMaxProcessing()),
		Attached: m.GetAttached(), LastSignMs: millis(m.GetLastSign()), Stuck: m.GetStuck(), ReplacedBy: orNull(m.GetReplacedBy()),
	}
}

// memberState is how a member does, for people.
func memberState(m *gatewayv1.GroupMember) string {
	switch {
	case m.GetReplacedBy() != "":
		return "replaced by " + m.GetReplacedBy()
	case m.GetStuck():
		return "stuck"
	case m.GetAttached():
		return "ok"
	case m.GetLastSign() == nil:
		return "-"
	}
	return "no connection"
}

func partitionOf(p *gatewayv1.GroupPartition) output.GroupPartition {
	return output.GroupPartition{
		Topic: p.GetTopic(), Partition: p.GetPartition(), Committed: p.GetCommitted(), End: p.GetEnd(), Lag: p.GetLag(),
		Member: orNull(p.GetMemberId()), Metadata: p.GetMetadata(), TopicID: topicID(p.GetTopicId()), CommittedAt: timestamp(p.GetCommittedAt()),
		LogStart: p.GetLogStart(), LagMs: millis(p.GetLagAge()), LagAtLeast: p.GetLagAgeAtLeast(),
		RecordsPerSecond: rateOrNull(p.GetRecordsPerSecond()), AppendedPerSecond: rateOrNull(p.GetAppendedPerSecond()), CatchUpMs: millis(p.GetCatchUp()),
		HeldBackBy: heldBackWord(p.GetHeldBackBy()), HeldBackDetail: p.GetHeldBackDetail(), Delivered: p.GetDelivered(), Processed: p.GetProcessed(),
		OldestUnprocessedMs: millis(p.GetOldestUnprocessedAge()), Stuck: p.GetStuck(), Revoking: p.GetRevoking(),
		RevokingRemainingMs: millis(p.GetRevokingRemaining()), TargetMember: orNull(p.GetTargetMemberId()), UnownedMs: millis(p.GetUnowned()),
	}
}

// heldBackWord is "nothing", "no_owner", "broker", "network", "credit", "application"
// or "unknown".
func heldBackWord(by gatewayv1.HeldBackBy) string {
	if by == gatewayv1.HeldBackBy_HELD_BACK_BY_UNSPECIFIED {
		return "unknown"
	}
	return strings.ToLower(strings.TrimPrefix(by.String(), "HELD_BACK_BY_"))
}

func heldBack(p *gatewayv1.GroupPartition) string {
	word := strings.ReplaceAll(heldBackWord(p.GetHeldBackBy()), "_", " ")
	switch {
	case p.GetHeldBackBy() == gatewayv1.HeldBackBy_HELD_BACK_BY_NOTHING:
		return "-"
	case p.GetHeldBackDetail() == "":
		return word
	}
	return word + ": " + p.GetHeldBackDetail()
}

func lagAge(p *gatewayv1.GroupPartition) string {
	switch {
	case p.GetLagAge() == nil || p.GetLag() == 0:
		return "-"
	case p.GetLagAgeAtLeast():
		return "≥" + span(p.GetLagAge())
	}
	return span(p.GetLagAge())
}

// catchUp is the time to catch up, for people.
func catchUp(p *gatewayv1.GroupPartition) string {
	switch {
	case p.GetLag() == 0:
		return "-"
	case p.GetCatchUp() != nil:
		return span(p.GetCatchUp())
	case p.GetRecordsPerSecond() >= 0 && p.GetRecordsPerSecond() <= max(p.GetAppendedPerSecond(), 0):
		return "never"
	}
	return "-"
}

// groupTotals sums up the partitions of a group.
type groupTotals struct {
	lag, unknown int64
	oldest       *durationpb.Duration // nil: unknown
	atLeast      bool
	catchUp      *durationpb.Duration // nil: unknown, or never
}

func totalsOf(r *gatewayv1.DescribeGroupResponse) groupTotals {
	t := groupTotals{catchUp: durationpb.New(0)}
	for _, p := range r.GetPartitions() {
		if p.GetLag() < 0 {
			t.unknown++
		}
		t.lag += max(p.GetLag(), 0)
		if age := p.GetLagAge(); p.GetLag() > 0 && age != nil && age.AsDuration() > t.oldest.AsDuration() {
			t.oldest, t.atLeast = age, p.GetLagAgeAtLeast()
		}
		switch in := p.GetCatchUp(); {
		case p.GetLag() != 0 && in == nil:
			t.catchUp = nil
		case t.catchUp != nil && in.AsDuration() > t.catchUp.AsDuration():
			t.catchUp = in
		}
	}
	return t
}

func (t groupTotals) sentence() string {
	s := "lag " + output.Records(t.lag)
	if t.oldest != nil {
		at := ""
		if t.atLeast {
			at = "at least "
		}
		s += ", the oldest " + at + span(t.oldest) + " old"
	}
	if t.lag > 0 && t.catchUp != nil {
		s += ", caught up in " + span(t.catchUp)
	}
	if t.unknown > 0 {
		s += fmt.Sprintf(", and that of %s unknown", counted(int(t.unknown), "partition"))
	}
	return s + "\n"
}

// lastSentence tells of the newest rebalance; empty: none is kept.
func lastSentence(group string, r *gatewayv1.GroupRebalance) string {
	if r == nil {
		return ""
	}
	when := ""
	if r.GetStartedAt().IsValid() {
		when = " at " + output.Timestamp(r.GetStartedAt().AsTime().UnixMilli())
	}
	return fmt.Sprintf("last rebalance%s, epoch %d: %s (see leat group why %s)\n", when, r.GetGroupEpoch(), r.GetCause(), group)
}

// counted is a number of things for people.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// span is a time for people; "-" for none.
func span(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return output.Duration(max(d.AsDuration(), 0))
}

// perSecond is a rate for people; "-" for an unknown one.
func perSecond(r float64) string {
	switch {
	case r < 0:
		return "-"
	case r < 10:
		return fmt.Sprintf("%.1f/s", r)
	}
	return output.Count(int64(r+0.5)) + "/s"
}

func rateOrNull(r float64) *float64 {
	if r < 0 {
		return nil
	}
	return &r
}

// millis is a time in ms; null for none.
func millis(d *durationpb.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.AsDuration().Milliseconds()
	return &ms
}

// timestamp is a time in ms since 1970; null for none.
func timestamp(t *timestamppb.Timestamp) *int64 {
	if !t.IsValid() {
		return nil
	}
	ms := t.AsTime().UnixMilli()
	return &ms
}
