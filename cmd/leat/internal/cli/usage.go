package cli

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/leat-io/leat/cmd/leat/internal/exit"
)

// seeHelp is the next step of most wrong usage.
func seeHelp(cmd *cobra.Command) string {
	return fmt.Sprintf("See `%s --help`.", cmd.CommandPath())
}

// args demands arguments by name. A last name with "…" stands for one or more.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		least, most := len(names), len(names)
		if least > 0 && strings.HasSuffix(names[least-1], "…") {
			most = 1 << 20
		}
		switch {
		case len(given) < least:
			return exit.Usage(seeHelp(cmd), "%s is missing", strings.TrimSuffix(names[len(given)], "…"))
		case len(given) > most && most == 0:
			return exit.Usage(seeHelp(cmd), "it takes no arguments, and %q is one", given[0])
		case len(given) > most:
			return exit.Usage(seeHelp(cmd), "%q is one argument too many; it takes %s", given[most], strings.Join(names, " "))
		}
		return nil
	}
}

// group makes a command that only holds others.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) == 0 {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return exit.Silent(exit.Wrong)
		}
		return unknownCommand(cmd, given[0])
	}
	return cmd
}

// newHelpCommand is cobra's own, except that an unknown command is wrong usage.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]…", Short: "Help about any command", Example: "  leat help topic create",
		RunE: func(cmd *cobra.Command, given []string) error {
			about, rest, err := cmd.Root().Find(given)
			if err != nil || about == nil {
				return unknownCommand(cmd.Root(), given[0])
			}
			if len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	hint := ""
	if n := nearest(name, names); n != "" {
		hint = fmt.Sprintf("; did you mean %q?", n)
	}
	return exit.Usage(seeHelp(cmd), "there is no command %q%s", name, hint)
}

// flagError turns what the flag parser says into wrong usage with a hint.
func flagError(cmd *cobra.Command, err error) error {
	message := err.Error()
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		return exit.Usage(seeHelp(cmd), "--%s is %q; it must be %s", wrong.GetFlag().Name, wrong.GetValue(), valueOf(wrong.GetFlag()))
	}
	name, ok := strings.CutPrefix(message, "unknown flag: --")
	if !ok {
		return exit.Usage(seeHelp(cmd), "%s", message)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	hint := ""
	if n := nearest(name, names); n != "" {
		hint = fmt.Sprintf("; did you mean --%s?", n)
	}
	return exit.Usage(seeHelp(cmd), "there is no flag --%s%s", name, hint)
}

// valueOf says what a flag takes.
func valueOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "bool":
		return "true or false"
	case "int", "int64":
		return "a whole number"
	case "int32":
		return fmt.Sprintf("a whole number up to %d", math.MaxInt32)
	case "int32Slice":
		return "whole numbers with commas between"
	case "float64":
		return "a number"
	case "duration":
		return "a time span such as 500ms, 30s or 5m"
	default:
		return "a " + f.Value.Type()
	}
}

// nearest is the candidate that is most like name, "" if none is much like it.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", len(name)/2+1
	for _, c := range candidates {
		d := distance(name, c)
		if strings.HasPrefix(c, name) && len(name) > 1 {
			d = 1
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the number of insertions, removals and replacements of a byte
// that lead from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		previous := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := previous
			if a[i] != b[j] {
				cost++
			}
			previous = row[j+1]
			row[j+1] = min(cost, row[j]+1, previous+1)
		}
	}
	return row[len(b)]
}

// oneOf demands one of a few words.
func oneOf(cmd *cobra.Command, what, value string, words ...string) error {
	for _, w := range words {
		if value == w {
			return nil
		}
	}
	return exit.Usage(seeHelp(cmd), "%s is %q; it must be one of %s", what, value, strings.Join(words, ", "))
}

// keyValues parses k=v pairs.
func keyValues(cmd *cobra.Command, flag string, pairs []string) (map[string]string, error) {
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, exit.Usage(seeHelp(cmd), "--%s %q is not name=value", flag, p)
		}
		if _, twice := m[k]; twice {
			return nil, exit.Usage(seeHelp(cmd), "--%s sets %s twice", flag, k)
		}
		m[k] = v
	}
	return m, nil
}
