package cli

import (
	"context"
	"regexp"

	"github.com/spf13/cobra"

	gatewayv1 "github.com/leat-io/leat/gen/go/leat/gateway/v1"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// topicsOrPattern demands topics, unless a pattern stands for them.
func topicsOrPattern(cmd *cobra.Command, given []string) error {
	pattern := cmd.Flags().Lookup("topic-pattern")
	switch {
	case !pattern.Changed:
		return args("TOPIC…")(cmd, given)
	case pattern.Value.String() == "":
		return exit.Usage(seeHelp(cmd), "--topic-pattern is empty; \".*\" is every topic")
	}
	return nil
}

// compileTopics compiles a pattern as coordinators do: it matches whole names.
func compileTopics(pattern string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile("^(?:" + pattern + ")$")
}

// topicsMatching lists the topics that a pattern means by now.
func topicsMatching(ctx context.Context, admin gatewayv1.AdminServiceClient, pattern string) ([]string, error) {
	re, err := compileTopics(pattern)
	if err != nil {
		return nil, err
	}
	all, err := pages(func(token string) ([]*gatewayv1.TopicSummary, string, error) {
		r, err := call(ctx, admin.ListTopics, &gatewayv1.ListTopicsRequest{PageToken: token, ExcludeInternal: true})
		return r.GetTopics(), r.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range all {
		if re.MatchString(t.GetName()) {
			names = append(names, t.GetName())
		}
	}
	return names, nil
}
