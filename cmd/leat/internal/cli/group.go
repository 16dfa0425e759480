package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
	typev1 "github.com/leat-io/leat/gen/go/leat/type/v1"
	"github.com/leat-io/leat/libs/rpc"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
)

// errorOf is a failure inside a listing.
func errorOf(e *typev1.Error) *output.Error {
	return &output.Error{Reason: rpc.ReasonName(e.GetReason()), Message: e.GetMessage()}
}

func newGroupCommand(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use: "group", Short: "List, describe, explain, reset and delete consumer groups",
		Example: "  leat group list\n  leat group describe g1\n  leat group why g1\n  leat group simulate g1 --add 1\n  leat group reset g1 --to-earliest --dry-run",
	}, newGroupList(a), newGroupDescribe(a), newGroupWhy(a), newGroupSimulate(a), newGroupReset(a), newGroupCommit(a), newGroupDelete(a))
}

func newGroupList(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List consumer groups", Args: args(),
		Example: "  leat group list\n  leat group list -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				groups, err := pages(func(token string) ([]*gatewayv1.GroupSummary, string, error) {
					r, err := call(ctx, admin.ListGroups, &gatewayv1.ListGroupsRequest{PageToken: token})
					return r.GetGroups(), r.GetNextPageToken(), err
				})
				if err != nil {
					return err
				}
				list := output.Groups{Groups: []output.Group{}}
				t := output.NewTable("GROUP", "STATE", ">MEMBERS")
				for _, g := range groups {
					list.Groups = append(list.Groups, output.Group{Group: g.GetGroup(), State: g.GetState(), Members: g.GetMembers()})
					t.Row(g.GetGroup(), g.GetState(), g.GetMembers())
				}
				if a.json() {
					return output.JSON(a.Out, list)
				}
				return t.Write(a.Out)
			})
		},
	}
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func newGroupCommit(a *app) *cobra.Command {
	var topic, to string
	cmd := &cobra.Command{
		Use: "commit GROUP [TOPIC:PARTITION=OFFSET]…", Short: "Set the offsets of a group without members",
		Long: `Set where a group reads next: offsets one by one, or with --topic and --to a
whole topic's at a place or time (` + timeForms + `).
The group must have no members; "leat group reset" moves one that has.

` + exitCodes,
		Example: `  leat group commit g1 hdfs:0=100 hdfs:1=250
  leat group commit g1 --topic hdfs --to earliest`,
		ValidArgsFunction: a.completeGroup,
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return exit.Usage(seeHelp(cmd), "GROUP is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			offsets, err := parseGroupOffsets(cmd, given[1:])
			if err != nil {
				return err
			}
			if (topic == "") != (to == "") {
				return exit.Usage(seeHelp(cmd), "--topic and --to go together")
			}
			if topic == "" && len(offsets) == 0 {
				return exit.Usage("Give TOPIC:PARTITION=OFFSET, or --topic and --to.", "no offset is named")
			}
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				if err := checkGroupOffsets(ctx, admin, offsets); err != nil {
					return err
				}
				if topic != "" {
					resolved, err := resolveOffsets(ctx, cmd, admin, topic, to)
					if err != nil {
						return err
					}
					offsets = append(offsets, resolved...)
				}
				if _, err := call(ctx, admin.CommitGroupOffsets, &gatewayv1.CommitGroupOffsetsRequest{Group: given[0], Offsets: offsets}); err != nil {
					return err
				}
				return a.done(given[0], "committed", fmt.Sprintf("committed %d offsets of group %s", len(offsets), given[0]))
			})
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "topic whose partitions all move")
	cmd.Flags().StringVar(&to, "to", "", "where to: earliest, latest, or a time")
	return cmd
}

func parseGroupOffsets(cmd *cobra.Command, texts []string) ([]*gatewayv1.GroupOffset, error) {
	var offsets []*gatewayv1.GroupOffset
	for _, text := range texts {
		place, offset, ok := strings.Cut(text, "=")
		colon := strings.LastIndexByte(place, ':')
		if !ok || colon <= 0 {
			return nil, exit.Usage(seeHelp(cmd), "%q is not TOPIC:PARTITION=OFFSET", text)
		}
		partition, err := strconv.ParseInt(place[colon+1:], 10, 32)
		if err != nil || partition < 0 {
			return nil, exit.Usage(seeHelp(cmd), "%q names no partition; partitions count from 0", text)
		}
		next, err := strconv.ParseInt(offset, 10, 64)
		if err != nil || next < 0 {
			return nil, exit.Usage(seeHelp(cmd), "%q names no offset; offsets count from 0", text)
		}
		offsets = append(offsets, &gatewayv1.GroupOffset{Topic: place[:colon], Partition: int32(partition), NextOffset: next})
	}
	return offsets, nil
}

// checkGroupOffsets refuses offsets from which the group could not read: below the
// first record or behind the end. A partition that cannot tell at the moment is
// taken at the caller's word.
func checkGroupOffsets(ctx context.Context, admin gatewayv1.AdminServiceClient, offsets []*gatewayv1.GroupOffset) error {
	byTopic := map[string][]*gatewayv1.GroupOffset{}
	for _, o := range offsets {
		byTopic[o.GetTopic()] = append(byTopic[o.GetTopic()], o)
	}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		bounds := map[string]map[int32]int64{}
		for _, place := range []string{"earliest", "latest"} {
			spec, err := parseOffsetSpec(place, time.Now())
			if err != nil {
				return err
			}
			request := &gatewayv1.ListOffsetsRequest{Topic: topic, Spec: spec}
			for _, o := range byTopic[topic] {
				request.Partitions = append(request.Partitions, o.GetPartition())
			}
			slices.Sort(request.Partitions)
			request.Partitions = slices.Compact(request.Partitions)
			found, err := call(ctx, admin.ListOffsets, request)
			if err != nil {
				return err
			}
			bounds[place] = map[int32]int64{}
			for _, o := range found.GetOffsets() {
				if o.GetError() == nil {
					bounds[place][o.GetPartition()] = o.GetOffset()
				}
			}
		}
		for _, o := range byTopic[topic] {
			first, known := bounds["earliest"][o.GetPartition()]
			end, alsoKnown := bounds["latest"][o.GetPartition()]
			if known && alsoKnown && (o.GetNextOffset() < first || o.GetNextOffset() > end) {
				return rpc.Errorf(typev1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "offset %d of partition %d of topic %s is not one to go on from; those are %d to %d",
					o.GetNextOffset(), o.GetPartition(), topic, first, end)
			}
		}
	}
	return nil
}

// resolveOffsets finds the offsets of a topic's partitions at a place or time;
// where no record is that late, it is the end.
func resolveOffsets(ctx context.Context, cmd *cobra.Command, admin gatewayv1.AdminServiceClient, topic, to string) ([]*gatewayv1.GroupOffset, error) {
	spec, err := parseOffsetSpec(to, time.Now())
	if err != nil {
		return nil, exit.Usage(seeHelp(cmd), "--to: %w", err)
	}
	found, err := call(ctx, admin.ListOffsets, &gatewayv1.ListOffsetsRequest{Topic: topic, Spec: spec})
	if err != nil {
		return nil, err
	}
	latest, _ := parseOffsetSpec("latest", time.Now())
	ends, err := call(ctx, admin.ListOffsets, &gatewayv1.ListOffsetsRequest{Topic: topic, Spec: latest})
	if err != nil {
		return nil, err
	}
	endOf := map[int32]int64{}
	for _, o := range ends.GetOffsets() {
		endOf[o.GetPartition()] = o.GetOffset()
	}
	var offsets []*gatewayv1.GroupOffset
	for _, o := range found.GetOffsets() {
		if e := rpc.FromProto(o.GetError()); e != nil {
			return nil, e
		}
		next := o.GetOffset()
		if next < 0 {
			next = endOf[o.GetPartition()]
		}
		offsets = append(offsets, &gatewayv1.GroupOffset{Topic: topic, Partition: o.GetPartition(), NextOffset: max(next, 0)})
	}
	return offsets, nil
}

func newGroupDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "delete GROUP", Short: "Delete a group without members, with its offsets", Args: args("GROUP"), ValidArgsFunction: a.completeGroup,
		Example: "  leat group delete g1",
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.withAdmin(cmd.Context(), func(ctx context.Context, admin gatewayv1.AdminServiceClient) error {
				if _, err := call(ctx, admin.DeleteGroup, &gatewayv1.DeleteGroupRequest{Group: given[0]}); err != nil {
					return err
				}
				return a.done(given[0], "deleted", "deleted group "+given[0])
			})
		},
	}
}
