package commitlog
import ("testing";"fmt";"github.com/leat-io/leat/libs/vfs/errorfs")
func TestZZ(t *testing.T){
 disk:=newFS(t); f:=errorfs.Wrap(disk); c:=newCleanLog(t,f)
 for range 3 { c.put(kv{key:"a",value:"b"}) }
 c.roll(); end:=mustSync(t,c.Log)
 f.OnCall(func(op errorfs.Op, p string) error { fmt.Println(op,p); return nil })
 c.clean(cleanOptions(end))
}
