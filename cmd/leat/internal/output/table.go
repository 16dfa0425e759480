package output

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table collects rows and prints them aligned.
type Table struct {
	rows  [][]string
	right []bool
}

// NewTable starts a table. A heading that begins with '>' is aligned to the
// right, as numbers are.
func NewTable(headings ...string) *Table {
	t := &Table{right: make([]bool, len(headings))}
	row := make([]string, len(headings))
	for i, h := range headings {
		t.right[i] = strings.HasPrefix(h, ">")
		row[i] = strings.TrimPrefix(h, ">")
	}
	t.rows = append(t.rows, row)
	return t
}

// Row adds a row; cells are printed with fmt.Sprint.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.right))
	for i := range row {
		if i < len(cells) {
			row[i] = fmt.Sprint(cells[i])
		}
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows without the headings.
func (t *Table) Len() int { return len(t.rows) - 1 }

// Write prints the table.
func (t *Table) Write(w io.Writer) error {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
