; Threads share the tasks of a job. The tasks are divided into one segment per thread. A thread
; takes the tasks of its own segment first, so that it works on the same region of data in
; consecutive jobs. Then the thread takes tasks of the other segments. An idle thread spins for a
; while, and then sleeps on a futex. The calling thread takes tasks, too. It waits only for tasks
; that have begun, not for threads: a thread without a begun task delays nobody, even if the
; operating system does not schedule the thread.
;
; The shared memory consists of cache lines of 64 bytes:
; 0  number of the job; each job increments it by 2
; 1  futex word; each job increments it when its tasks can be taken
; 2  number of completed tasks
; 3  job: function, address of its arguments, number of tasks, number of tasks that a thread takes
;    at a time, address of the first thread's scratch memory, bytes of scratch memory per thread
; 4  number of sleeping threads
; 5  number of threads, including the calling thread
; 6  and following: one ticket per segment, with the number of the job in the upper 32 bits and the
;    number of the segment's next task, counted from the start of the segment, in the lower 32 bits
%line = type [8 x i64]
%job = type { ptr, ptr, i64, i64, ptr, i64 }

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @syscall(i64, ...)
declare void @PAUSE

; Makes this thread flush denormal numbers to 0, and returns the previous control register.
define internal i64 @flush() {
  %before = call i64 @control()
  %flushing = or i64 %before, FLUSHING
  call void @set.control(i64 %flushing)
  ret i64 %before
}

define internal i64 @futex(ptr %word, i64 %operation, i64 %value) {
  %result = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 %operation, i64 %value, ptr null,
                                         ptr null, i64 0)
  ret i64 %result
}

; Takes tasks until none are left. The thread reads the ticket, then the job. The later cmpxchg
; succeeds only if the ticket has not changed since; the job that was read then belongs to the
; ticket. The thread adds the number of its completed tasks to the counter only once, at the end,
; because each addition moves the counter's cache line to another processor. The next job cannot
; begin before this addition.
define internal void @work(ptr %shared, i64 %thread) noinline {
entry:
  %done = getelementptr %line, ptr %shared, i64 2
  %job = getelementptr %line, ptr %shared, i64 3
  %job.arguments = getelementptr %job, ptr %job, i64 0, i32 1
  %job.count = getelementptr %job, ptr %job, i64 0, i32 2
  %job.grain = getelementptr %job, ptr %job, i64 0, i32 3
  %job.scratch = getelementptr %job, ptr %job, i64 0, i32 4
  %job.stride = getelementptr %job, ptr %job, i64 0, i32 5
  %number.place = getelementptr %line, ptr %shared, i64 5
  %threads = load i64, ptr %number.place, align 8
  %sum = alloca i64
  store i64 0, ptr %sum
  br label %segment
segment:
  %index = phi i64 [ 0, %entry ], [ %index.next, %following ]
  %turn = add i64 %thread, %index
  %own = urem i64 %turn, %threads
  %ticket.line = add i64 %own, 6
  %ticket.place = getelementptr %line, ptr %shared, i64 %ticket.line
  br label %next
next:
  %ticket = load atomic i64, ptr %ticket.place seq_cst, align 8
  %function = load atomic ptr, ptr %job seq_cst, align 8
  %arguments = load atomic ptr, ptr %job.arguments seq_cst, align 8
  %count = load atomic i64, ptr %job.count seq_cst, align 8
  %grain = load atomic i64, ptr %job.grain seq_cst, align 8
  %scratch = load atomic ptr, ptr %job.scratch seq_cst, align 8
  %stride = load atomic i64, ptr %job.stride seq_cst, align 8
  %low.times = mul i64 %own, %count
  %low = udiv i64 %low.times, %threads
  %high.times = add i64 %low.times, %count
  %high = udiv i64 %high.times, %threads
  %number = and i64 %ticket, 4294967295
  %task = add i64 %low, %number
  %left = icmp ult i64 %task, %high
  br i1 %left, label %take, label %following
take:
  %advanced = add i64 %ticket, %grain
  %swap = cmpxchg ptr %ticket.place, i64 %ticket, i64 %advanced seq_cst seq_cst
  %taken = extractvalue { i64, i1 } %swap, 1
  br i1 %taken, label %run, label %next
run:
  %whole = add i64 %task, %grain
  %stop = call i64 @llvm.smin.i64(i64 %whole, i64 %high)
  %offset = mul i64 %stride, %thread
  %memory = getelementptr i8, ptr %scratch, i64 %offset
  call void %function(ptr %arguments, i64 %task, i64 %stop, ptr %memory)
  %ran = sub i64 %stop, %task
  %ran.before = load i64, ptr %sum
  %ran.now = add i64 %ran.before, %ran
  store i64 %ran.now, ptr %sum
  br label %next
following:
  %index.next = add i64 %index, 1
  %more = icmp ult i64 %index.next, %threads
  br i1 %more, label %segment, label %all
all:
  %all.ran = load i64, ptr %sum
  %any = icmp ne i64 %all.ran, 0
  br i1 %any, label %add, label %end
add:
  %before = atomicrmw add ptr %done, i64 %all.ran seq_cst
  br label %end
end:
  ret void
}

; The function of a thread: waits for jobs and takes their tasks. While it waits, the thread spins
; for `rounds` iterations before it sleeps.
define void @worker(ptr %shared, i64 %thread, i64 %rounds, ptr %unused) {
entry:
  %control = call i64 @flush()
  %word = getelementptr %line, ptr %shared, i64 1
  %sleepers = getelementptr %line, ptr %shared, i64 4
  br label %wait
wait:
  %seen = phi i32 [ 0, %entry ], [ %now, %go ]
  br label %spin
spin:
  %round = phi i64 [ 0, %wait ], [ %round.next, %spins ]
  %called = load atomic i32, ptr %word seq_cst, align 8
  %same = icmp eq i32 %called, %seen
  br i1 %same, label %spins, label %go
spins:
  call void @PAUSE
  %round.next = add i64 %round, 1
  %more = icmp ult i64 %round.next, %rounds
  br i1 %more, label %spin, label %sleep
sleep:
  %up = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %value = zext i32 %seen to i64
  %slept = call i64 @futex(ptr %word, i64 128, i64 %value)
  %down = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %woken = load atomic i32, ptr %word seq_cst, align 8
  %still = icmp eq i32 %woken, %seen
  br i1 %still, label %sleep, label %go
go:
  %now = load atomic i32, ptr %word seq_cst, align 8
  call void @work(ptr %shared, i64 %thread)
  br label %wait
}

define internal void @wake(ptr %shared) {
  %word = getelementptr %line, ptr %shared, i64 1
  %sleepers = getelementptr %line, ptr %shared, i64 4
  %number = atomicrmw add ptr %word, i32 1 seq_cst
  %sleeping = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %call, label %end
call:
  %woken = call i64 @futex(ptr %word, i64 129, i64 2147483647)
  br label %end
end:
  ret void
}

; Sets the tickets of all segments.
define internal void @set(ptr %shared, i64 %ticket) {
entry:
  %number.place = getelementptr %line, ptr %shared, i64 5
  %threads = load i64, ptr %number.place, align 8
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %index.next, %next ]
  %ticket.line = add i64 %index, 6
  %place = getelementptr %line, ptr %shared, i64 %ticket.line
  store atomic i64 %ticket, ptr %place seq_cst, align 8
  %index.next = add i64 %index, 1
  %more = icmp ult i64 %index.next, %threads
  br i1 %more, label %next, label %end
end:
  ret void
}

define internal void @share(ptr %shared, ptr %given) {
entry:
  %given.arguments = getelementptr %job, ptr %given, i64 0, i32 1
  %given.count = getelementptr %job, ptr %given, i64 0, i32 2
  %given.grain = getelementptr %job, ptr %given, i64 0, i32 3
  %given.scratch = getelementptr %job, ptr %given, i64 0, i32 4
  %given.stride = getelementptr %job, ptr %given, i64 0, i32 5
  %function = load ptr, ptr %given, align 8
  %arguments = load ptr, ptr %given.arguments, align 8
  %count = load i64, ptr %given.count, align 8
  %grain = load i64, ptr %given.grain, align 8
  %scratch = load ptr, ptr %given.scratch, align 8
  %stride = load i64, ptr %given.stride, align 8
  %few = icmp sle i64 %count, %grain
  br i1 %few, label %alone, label %together
alone:
  call void %function(ptr %arguments, i64 0, i64 %count, ptr %scratch)
  ret void
together:
  %done = getelementptr %line, ptr %shared, i64 2
  %job = getelementptr %line, ptr %shared, i64 3
  %job.arguments = getelementptr %job, ptr %job, i64 0, i32 1
  %job.count = getelementptr %job, ptr %job, i64 0, i32 2
  %job.grain = getelementptr %job, ptr %job, i64 0, i32 3
  %job.scratch = getelementptr %job, ptr %job, i64 0, i32 4
  %job.stride = getelementptr %job, ptr %job, i64 0, i32 5
  ; no thread may take a task while the job changes: set the tickets to task number 4294967295,
  ; which is beyond the end of every segment
  %number = load i64, ptr %shared, align 8
  %number.closed = add i64 %number, 1
  %number.open = add i64 %number, 2
  store i64 %number.open, ptr %shared, align 8
  %upper = shl i64 %number.closed, 32
  %closed = or i64 %upper, 4294967295
  call void @set(ptr %shared, i64 %closed)
  store atomic i64 0, ptr %done seq_cst, align 8
  store atomic ptr %function, ptr %job seq_cst, align 8
  store atomic ptr %arguments, ptr %job.arguments seq_cst, align 8
  store atomic i64 %count, ptr %job.count seq_cst, align 8
  store atomic i64 %grain, ptr %job.grain seq_cst, align 8
  store atomic ptr %scratch, ptr %job.scratch seq_cst, align 8
  store atomic i64 %stride, ptr %job.stride seq_cst, align 8
  %open = shl i64 %number.open, 32
  call void @set(ptr %shared, i64 %open)
  call void @wake(ptr %shared)
  call void @work(ptr %shared, i64 0)
  br label %wait
wait:
  %finished = load atomic i64, ptr %done seq_cst, align 8
  %all = icmp eq i64 %finished, %count
  br i1 %all, label %end, label %spins
spins:
  call void @PAUSE
  br label %wait
end:
  ret void
}

; Runs jobs one after another. The parameters are the address of the jobs, the number of jobs, and
; the address of the shared memory. The last address is 0 if there are no other threads.
define void @jobs(ptr %jobs, i64 %count, i64 %memory, ptr %unused) {
entry:
  %control = call i64 @flush()
  %shared = inttoptr i64 %memory to ptr
  %is.alone = icmp eq i64 %memory, 0
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %index.next, %done ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %run, label %end
run:
  %job = getelementptr %job, ptr %jobs, i64 %index
  br i1 %is.alone, label %alone, label %together
alone:
  %job.arguments = getelementptr %job, ptr %job, i64 0, i32 1
  %job.count = getelementptr %job, ptr %job, i64 0, i32 2
  %job.scratch = getelementptr %job, ptr %job, i64 0, i32 4
  %function = load ptr, ptr %job, align 8
  %arguments = load ptr, ptr %job.arguments, align 8
  %tasks = load i64, ptr %job.count, align 8
  %scratch = load ptr, ptr %job.scratch, align 8
  call void %function(ptr %arguments, i64 0, i64 %tasks, ptr %scratch)
  br label %done
together:
  call void @share(ptr %shared, ptr %job)
  br label %done
done:
  %index.next = add i64 %index, 1
  br label %next
end:
  call void @set.control(i64 %control)
  ret void
}
