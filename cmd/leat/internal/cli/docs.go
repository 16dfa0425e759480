package cli

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:generate go test . -run TestDocsAreUpToDate -update

//go:embed docs_intro.md
var docsIntro string

// Docs is docs/cli.md: an introduction, then each command of the tree.
func Docs() string {
	root := newRoot(&app{IO: IO{Getenv: func(string) string { return "" }}})
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString(docsIntro)
	b.WriteString("\n## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	for _, c := range root.Commands() {
		writeCommand(&b, c)
	}
	return b.String()
}

func writeCommand(b *strings.Builder, c *cobra.Command) {
	if c.Hidden || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", c.CommandPath(), c.Short)
	if long := strings.TrimSpace(strings.Replace(c.Long, exitCodes, "", 1)); long != "" && c.Name() != "completion" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", long)
	}
	if use := c.UseLine(); c.Runnable() && !isGroup(c) {
		fmt.Fprintf(b, "\nUsage: `%s`\n", use)
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", unindent(c.Example))
	}
	if c.Name() == "completion" {
		var shells []string
		for _, s := range c.Commands() {
			shells = append(shells, "`"+s.CommandPath()+"`")
		}
		fmt.Fprintf(b, "\n%s; each tells with `--help` how to load it.\n", strings.Join(shells, ", "))
		return
	}
	if c.LocalNonPersistentFlags().HasAvailableFlags() {
		b.WriteString("\n")
		writeFlags(b, c.LocalNonPersistentFlags())
	}
	for _, child := range c.Commands() {
		writeCommand(b, child)
	}
}

// isGroup reports whether a command only holds others.
func isGroup(c *cobra.Command) bool { return c.HasSubCommands() && c.Name() != "dev" }

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | default | what it does |\n|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " " + kind
		}
		value := f.DefValue
		if value == "[]" || value == "0" || value == "0s" {
			value = ""
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(usage, "|", `\|`))
	})
}

func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
