package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"
)

// completionTimeout is how long a shell waits for names; without a gateway there are
// none.
const completionTimeout = 2 * time.Second

// names asks the gateway for what may stand at a place of the command line.
type names func(ctx context.Context, admin gatewayv1.AdminServiceClient, given []string) []string

// complete answers the shell. A gateway that does not answer completes nothing.
func (a *app) complete(cmd *cobra.Command, given []string, begun string, ask names) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	conn, err := a.dial()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer conn.Close()
	var out []string
	for _, name := range ask(ctx, gatewayv1.NewAdminServiceClient(conn), given) {
		if strings.HasPrefix(name, begun) {
			out = append(out, name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeGroup completes a first argument that is a group.
func (a *app) completeGroup(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeGroupName(cmd, given, begun)
}

// completeGroupName completes a group, whatever stands before it.
func (a *app) completeGroupName(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, given, begun, func(ctx context.Context, admin gatewayv1.AdminServiceClient, _ []string) []string {
		r, err := admin.ListGroups(ctx, &gatewayv1.ListGroupsRequest{})
		if err != nil {
			return nil
		}
		var all []string
		for _, g := range r.GetGroups() {
			all = append(all, g.GetGroup())
		}
		return all
	})
}

// completeTopic completes a topic of the applications.
func (a *app) completeTopic(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd, given, begun, func(ctx context.Context, admin gatewayv1.AdminServiceClient, _ []string) []string {
		r, err := admin.ListTopics(ctx, &gatewayv1.ListTopicsRequest{ExcludeInternal: true})
		if err != nil {
			return nil
		}
		var all []string
		for _, t := range r.GetTopics() {
			all = append(all, t.GetName())
		}
		return all
	})
}

// completeMember completes a member of the group that is the first argument: by its
// instance id where it has one.
func (a *app) completeMember(cmd *cobra.Command, given []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(given) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, given, begun, func(ctx context.Context, admin gatewayv1.AdminServiceClient, given []string) []string {
		r, err := admin.DescribeGroup(ctx, &gatewayv1.DescribeGroupRequest{Group: given[0]})
		if err != nil {
			return nil
		}
		var all []string
		for _, m := range r.GetMembers() {
			if m.GetInstanceId() != "" {
				all = append(all, m.GetInstanceId())
			} else {
				all = append(all, m.GetMemberId())
			}
		}
		return all
	})
}

// completeFlag has a flag of a command completed. That there is no such flag is a
// mistake in the command tree, which the command then tells whoever runs it.
func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		cmd.RunE = func(*cobra.Command, []string) error { return err }
	}
}
