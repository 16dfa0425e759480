// Command leat is Leat's command line: it runs a whole mesh on one machine
// (leat dev), looks after topics and groups, and produces and consumes records
// through a gateway. docs/cli.md documents every command, the JSON that they
// print and their exit codes; it is generated from the command tree.
package main
