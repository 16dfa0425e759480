package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

func newGroupWhy(a *app) *cobra.Command {
	var epoch int64
	cmd := &cobra.Command{
		Use: "why GROUP", Short: "Tell why a group's partitions moved", Args: args("GROUP"), ValidArgsFunction: a.completeGroup,
		Long: `Show the last rebalances of a group, up to 64, newest first: what caused each,
how long it took until every partition had its owner, how many partitions moved,
and the longest time that one of them was without an owner. Then the partitions
that moved in the newest, or in that of --epoch.

` + exitCodes,
		Example: "  leat group why g1\n  leat group why g1 --epoch 12\n  leat group why g1 -o json",
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.ExplainGroup, &gatewayv1.ExplainGroupRequest{Group: given[0]})
				if err != nil {
					return err
				}
				all := r.GetRebalances()
				if cmd.Flags().Changed("epoch") {
					all = slices.DeleteFunc(slices.Clone(all), func(b *gatewayv1.GroupRebalance) bool { return b.GetGroupEpoch() != epoch })
					if len(all) == 0 {
						return &exit.Error{
							Code: exit.Failed, Err: fmt.Errorf("group %s keeps no rebalance of epoch %d", given[0], epoch),
							Next: "See which are kept with `leat group why " + given[0] + "`; the last 64 are.",
						}
					}
				}
				return a.printWhy(given[0], r.GetSummary().GetState(), all)
			})
		},
	}
	cmd.Flags().Int64Var(&epoch, "epoch", 0, "show the rebalance that led to this group epoch only")
	return cmd
}

func (a *app) printWhy(group, state string, all []*gatewayv1.GroupRebalance) error {
	why := output.GroupWhy{Group: group, State: state, Rebalances: []output.Rebalance{}}
	t := output.NewTable(">EPOCH", "WHEN", ">TOOK", ">MOVED", ">LONGEST WITHOUT OWNER", "CAUSE")
	for _, r := range all {
		entry := rebalanceOf(r)
		why.Rebalances = append(why.Rebalances, entry)
		when, took := "-", "-"
		if entry.StartedAt != nil {
			when = output.Timestamp(*entry.StartedAt)
			if entry.FinishedAt != nil {
				took = output.Duration(max(r.GetFinishedAt().AsTime().Sub(r.GetStartedAt().AsTime()), 0))
			}
		}
		t.Row(entry.Epoch, when, took, entry.Moved, span(r.GetLongestUnowned()), entry.Cause)
	}
	if a.json() {
		return output.JSON(a.Out, why)
	}
	if _, err := fmt.Fprintf(a.Out, "group %s: %s\n\n", group, state); err != nil {
		return err
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(a.Out, "no rebalance is kept: nobody has joined yet")
		return err
	}
	if err := t.Write(a.Out); err != nil {
		return err
	}
	newest := all[0]
	if len(newest.GetMoves()) == 0 {
		return nil
	}
	left := ""
	if n := int(newest.GetMoved()) - len(newest.GetMoves()); n > 0 {
		left = fmt.Sprintf(", of which %d are not kept", n)
	}
	if _, err := fmt.Fprintf(a.Out, "\nepoch %d moved %s%s:\n\n", newest.GetGroupEpoch(), counted(int(newest.GetMoved()), "partition"), left); err != nil {
		return err
	}
	return movesTable(newest.GetMoves()).Write(a.Out)
}

func movesTable(moves []*gatewayv1.GroupMove) *output.Table {
	t := output.NewTable("TOPIC", ">PARTITION", "FROM", "TO")
	for _, m := range moves {
		t.Row(output.OrDash(m.GetTopic()), m.GetPartition(), output.OrDash(m.GetFrom()), output.OrDash(m.GetTo()))
	}
	return t
}

func movesOf(moves []*gatewayv1.GroupMove) []output.Move {
	out := make([]output.Move, 0, len(moves))
	for _, m := range moves {
		out = append(out, output.Move{Topic: m.GetTopic(), Partition: m.GetPartition(), From: orNull(m.GetFrom()), To: orNull(m.GetTo())})
	}
	return out
}

func rebalanceOf(r *gatewayv1.GroupRebalance) output.Rebalance {
	return output.Rebalance{
		Epoch: r.GetGroupEpoch(), Cause: r.GetCause(), StartedAt: timestamp(r.GetStartedAt()), FinishedAt: timestamp(r.GetFinishedAt()),
		Moved: r.GetMoved(), Moves: movesOf(r.GetMoves()), LongestUnownedMs: millis(r.GetLongestUnowned()), TotalUnownedMs: millis(r.GetTotalUnowned()),
	}
}

func newGroupSimulate(a *app) *cobra.Command {
	var remove []string
	var add int32
	var like string
	cmd := &cobra.Command{
		Use: "simulate GROUP", Short: "Tell what would move if members left or came", Args: args("GROUP"), ValidArgsFunction: a.completeGroup,
		Long: `Tell who would hold how many partitions, and which would move, if members left
(--remove, by member id or instance id) or came (--add). Those that come subscribe
to what --like does, or else the first member. Nothing changes.

` + exitCodes,
		Example: `  leat group simulate g1 --add 1
  leat group simulate g1 --remove worker-3
  leat group simulate g1 --remove worker-3 --remove worker-4 --add 1 --like worker-1 -o json`,
		RunE: func(cmd *cobra.Command, given []string) error {
			switch {
			case add < 0:
				return exit.Usage(seeHelp(cmd), "--add is %d; it must not be negative", add)
			case add == 0 && len(remove) == 0:
				return exit.Usage(seeHelp(cmd), "nobody leaves and nobody comes; give --remove MEMBER, --add N, or both")
			case like != "" && add == 0:
				return exit.Usage(seeHelp(cmd), "--like says what those of --add subscribe to, and there are none")
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				r, err := call(ctx, admin.SimulateGroup, &gatewayv1.SimulateGroupRequest{Group: given[0], RemoveMembers: remove, AddMembers: add, LikeMember: like})
				if err != nil {
					return err
				}
				return a.printSimulation(given[0], r)
			})
		},
	}
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "member id or instance id that leaves; may be repeated")
	cmd.Flags().Int32Var(&add, "add", 0, "how many members come")
	cmd.Flags().StringVar(&like, "like", "", "member id or instance id whose subscription those have (default: the first member's)")
	completeFlag(cmd, "remove", a.completeMember)
	completeFlag(cmd, "like", a.completeMember)
	return cmd
}

func (a *app) printSimulation(group string, r *gatewayv1.SimulateGroupResponse) error {
	s := output.GroupSimulation{Group: group, Assignor: r.GetAssignor(), Members: []output.SimulatedMember{}, Moves: movesOf(r.GetMoves())}
	t := output.NewTable("MEMBER", "INSTANCE", ">NOW", ">THEN", ">CHANGE")
	before, after := int32(0), int32(0)
	for _, m := range r.GetMembers() {
		s.Members = append(s.Members, output.SimulatedMember{MemberID: m.GetMemberId(), InstanceID: orNull(m.GetInstanceId()), Before: m.GetBefore(), After: m.GetAfter()})
		change := "-"
		if n := m.GetAfter() - m.GetBefore(); n != 0 {
			change = fmt.Sprintf("%+d", n)
		}
		t.Row(m.GetMemberId(), output.OrDash(m.GetInstanceId()), m.GetBefore(), m.GetAfter(), change)
		before, after = before+m.GetBefore(), after+m.GetAfter()
	}
	if a.json() {
		return output.JSON(a.Out, s)
	}
	if _, err := fmt.Fprintf(a.Out, "group %s: %d of %s would move\n\n", group, len(s.Moves), counted(int(max(before, after)), "partition")); err != nil {
		return err
	}
	if err := t.Write(a.Out); err != nil || len(s.Moves) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(a.Out); err != nil {
		return err
	}
	return movesTable(r.GetMoves()).Write(a.Out)
}
