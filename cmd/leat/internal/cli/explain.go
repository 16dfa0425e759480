package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/libs/rpc"
)

func newExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [REASON]",
		Short: "Tell what the reason of an error means and what to do about it",
		Long:  "Explain one reason, or list them all.\n\n" + exitCodes,
		Example: `  leat explain NOT_LEADER
  leat explain`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return reasonNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return a.listReasons()
			}
			info, ok := rpc.ExplainReason(given[0])
			if !ok {
				hint := ""
				if n := nearest(strings.ToUpper(given[0]), reasonNames()); n != "" {
					hint = "; did you mean " + n + "?"
				}
				return exit.Usage("List them all with `leat explain`.", "there is no reason %q%s", given[0], hint)
			}
			r := reasonOf(info)
			if a.json() {
				return output.JSON(a.Out, r)
			}
			_, err := fmt.Fprintf(a.Out, "%s\n  Meaning:   %s\n  Next step: %s\n  gRPC code: %s\n  Outcome:   %s\n  Action:    %s\n",
				r.Reason, r.Meaning, r.NextStep, r.Code, r.Outcome, r.Action)
			return err
		},
	}
}

func reasonNames() []string {
	var names []string
	for _, info := range rpc.Reasons() {
		names = append(names, info.Name)
	}
	return names
}

func reasonOf(info rpc.ReasonInfo) output.Reason {
	return output.Reason{
		Reason: info.Name, Code: info.Code.String(),
		Outcome:      strings.ToLower(strings.TrimPrefix(info.Outcome.String(), "OUTCOME_")),
		Action:       strings.ToLower(strings.TrimPrefix(info.Action.String(), "ACTION_")),
		RetryDelayMs: info.RetryDelay.Milliseconds(), Meaning: info.Meaning, NextStep: info.NextStep,
	}
}

func (a *app) listReasons() error {
	reasons := output.Reasons{Reasons: []output.Reason{}}
	t := output.NewTable("REASON", "CODE", "MEANING")
	for _, info := range rpc.Reasons() {
		r := reasonOf(info)
		reasons.Reasons = append(reasons.Reasons, r)
		t.Row(r.Reason, r.Code, r.Meaning)
	}
	if a.json() {
		return output.JSON(a.Out, reasons)
	}
	return t.Write(a.Out)
}
