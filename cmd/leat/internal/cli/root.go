package cli

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
	"github.com/leat-io/leat/cmd/leat/internal/output"
	"github.com/leat-io/leat/libs/version"
)

const exitCodes = `Exit codes:
  0    all done
  1    failed
  2    wrong usage
  3    partly done: some records or partitions failed
  4    timed out, or the outcome is unknown
  130  interrupted`

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "leat",
		Short: "Leat is a partitioned, replicated commit log, built as a mesh of small services",
		Long: `leat runs a whole mesh on one machine (leat dev), looks after topics and
groups, and produces and consumes records through a gateway.

` + exitCodes,
		Example: `  leat dev --data D
  leat topic create hdfs --partitions 3
  leat produce hdfs --key-regex 'blk_-?[0-9]+' < HDFS.log
  leat consume hdfs --group g1 --from-beginning`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
				return nil
			}
			if a.requestTimeout <= 0 {
				return exit.Usage(seeHelp(cmd), "--request-timeout is %v; it must be above 0", a.requestTimeout)
			}
			return oneOf(cmd, "--output", a.output, "text", "json")
		},
	}
	gateway := a.Getenv("LEAT_GATEWAY")
	if gateway == "" {
		gateway = DefaultGateway
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.gateway, "gateway", gateway, "address of a gateway, host:port; also LEAT_GATEWAY")
	flags.StringVarP(&a.output, "output", "o", "text", "form of the output: text or json")
	flags.DurationVar(&a.requestTimeout, "request-timeout", 30*time.Second, "time for a command that asks the gateway something")
	root.SetFlagErrorFunc(flagError)
	group(root, newClusterCommand(a), newTopicCommand(a), newProduceCommand(a), newConsumeCommand(a),
		newGroupCommand(a), newLogCommand(a), newDevCommand(a), newExplainCommand(a), newVersionCommand(a), newEtcdCommand(a))
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			group(c)
			c.ValidArgsFunction = nil
			c.Example = "  source <(leat completion bash)"
			for _, shell := range c.Commands() {
				shell.Example = completionExamples()[shell.Name()]
			}
		}
	}
	return root
}

// completionExamples loads the completions into a shell that runs.
func completionExamples() map[string]string {
	return map[string]string{
		"bash":       "  source <(leat completion bash)",
		"zsh":        "  source <(leat completion zsh)",
		"fish":       "  leat completion fish | source",
		"powershell": "  leat completion powershell | Out-String | Invoke-Expression",
	}
}

func (a *app) json() bool { return a.output == "json" }

// done prints that a change took place.
func (a *app) done(name, what, sentence string) error {
	if a.json() {
		return output.JSON(a.Out, output.Changed{Name: name, Done: what})
	}
	_, err := fmt.Fprintln(a.Out, sentence)
	return err
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the release of this command", Args: args(),
		Example: "  leat version\n  leat version -o json",
		RunE: func(*cobra.Command, []string) error {
			v := output.Version{
				Version: version.String(), Go: strings.TrimPrefix(runtime.Version(), "go"),
				OS: runtime.GOOS, Arch: runtime.GOARCH,
			}
			if a.json() {
				return output.JSON(a.Out, v)
			}
			_, err := fmt.Fprintf(a.Out, "leat %s (go %s, %s/%s)\n", v.Version, v.Go, v.OS, v.Arch)
			return err
		},
	}
}
