// Package house tests the rules of the source tree: which package may import
// which, that every package explains itself, and that each module builds alone.
package house
