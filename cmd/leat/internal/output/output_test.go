package output

import (
	"strings"
	"testing"
	"time"
)

func TestForPeople(t *testing.T) {
	for got, want := range map[string]string{
		Bytes(0): "0 B", Bytes(1023): "1023 B", Bytes(1536): "1.5 KiB", Bytes(1 << 20): "1.0 MiB", Bytes(5 << 40): "5.0 TiB",
		Count(0): "0", Count(999): "999", Count(1000): "1,000", Count(-1234567): "-1,234,567",
		Records(1): "1 record", Records(2000): "2,000 records", Lag(-1): "-", Lag(1500): "1,500", Offset(-1): "-", Offset(15000): "15000",
		Duration(1500 * time.Microsecond): "1.50 ms", Duration(150 * time.Millisecond): "150 ms", Duration(1500 * time.Millisecond): "1.5 s", Duration(90 * time.Second): "1m30s",
		Broker(-1): "none", Broker(2): "2", IDs(nil): "-", IDs([]int32{1, 3}): "1,3", Timestamp(-1): "-", Timestamp(0): "1970-01-01T00:00:00.000Z",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTableIsAligned(t *testing.T) {
	table := NewTable("NAME", ">COUNT", "NOTE")
	table.Row("é", 5, "x")
	table.Row("longer", 12345, "")
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "NAME    COUNT  NOTE\né           5  x\nlonger  12345\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
